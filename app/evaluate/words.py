"""Words that haystacks, keys and names are made of. All lists are our own; order matters for seeds, so only append."""

from __future__ import annotations

from itertools import product


def words_of(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = words_of(
    """
    amber ancient ashen autumn bent blue blunt bold brass brave bright brisk bronze broad brown calm careful cedar
    cheap chestnut chilly clean clear clever coarse copper coral crimson crooked curious damp dark deep distant dry
    dull dusty early eastern elder empty faded faint fallow familiar fast feathered fine flat fond foreign fragile
    fresh frosty gentle gilded glad golden grand green grey hasty heavy hidden high hollow honest humble idle inner
    ivory jade jolly keen large lavender leaden lean light lively lofty lonely long loose loud low lucky marble
    mellow merry mild misty modest mossy muddy narrow neat nimble noble northern oaken odd olive open orange outer
    pale patient pearl plain pleasant polished proud purple quick quiet rare rapid red rich ripe rough round rusty
    sacred salty sandy scarlet secret shallow sharp shiny silent silver simple sleepy slender slow small smooth
    snowy soft solemn solid southern spare spotted steady steep stern still stony straight strange striped strong
    sturdy subtle sunny sweet swift tall tame tawny tender thick thin tidy timid tiny torn tranquil upper useful
    vast velvet violet warm weary western white wide wild windy winter wise wooden woollen yellow young
    """
)
OBJECTS = words_of(
    """
    anchor anvil apple arrow axle badge bagpipe barrel basin basket beacon bell bellows bench blanket boat bolt book
    bottle bowl box bracket brick bridge broom brush bucket buckle button cabinet cable candle canoe canvas carpet
    cart cask chain chair chalk chest chisel cider clock coat coin comb compass cradle crane crate crown cup curtain
    desk dial drum engine envelope feather fence ferry fiddle flag flask flute fork fountain frame funnel furnace
    garden gate glove goblet grain hammer handle harp hat hatch hinge hook horn hourglass jar kettle key kite knife
    ladder lamp lantern lathe ledger lens letter lever lock locket loom lute map mask mast mattress medal mill
    mirror mortar mosaic needle net oar organ oven paddle parcel pebble pendulum pianola pillar pillow pipe pitcher
    plank plate plough pocket pouch press prism pulley pump quill raft rail rake ribbon ring rope rudder saddle sail
    satchel scale scarf scroll shawl shelf shield shovel sickle sieve sledge spade spindle spoon spring stamp statue
    stool stove sword table tablet tankard tapestry telescope tent thimble thread tile tool torch tower tray trellis
    trowel trumpet trunk umbrella urn vase veil violin wagon wallet watch wheel whistle window wreath yarn
    """
)
GOODS = words_of(
    """
    almonds apples barley beans beets biscuits bricks butter candles carrots cheeses cherries clover coal copper
    cork cotton cream eggs feathers figs flour flax garlic ginger glass glue grapes hay herbs herring honey hops
    iron jam lard leather lentils lime linen malt maps marble melons milk millet mint moss mustard nails nuts oats
    oil olives onions paper pears peas pepper pigment pitch plums potatoes pottery quinces raisins reeds resin rice
    ropes rye saffron salt sand seeds silk slate soap straw sugar tallow tar tea thyme tiles timber tin tobacco
    turnips vinegar walnuts wax wheat wine wire wood wool
    """
)
PROFESSIONS = words_of(
    """
    accountant actor apothecary archivist baker barber beekeeper blacksmith boatbuilder bookbinder botanist brewer
    bricklayer butcher cabinetmaker carpenter cartographer chemist clockmaker cobbler composer cook cooper courier
    dentist draper dressmaker engraver ferryman fisherman forester gardener geologist glassblower goldsmith grocer
    harbourmaster hatter innkeeper inspector jeweller judge librarian locksmith mason mathematician miller miner
    musician notary nurse optician organist painter perfumer pharmacist photographer pianist pilot plumber
    postmaster potter printer roofer saddler sailor sculptor shepherd shipwright silversmith stonecutter surgeon
    surveyor tailor tanner teacher toolmaker translator trumpeter upholsterer veterinarian violinist watchmaker
    weaver wheelwright
    """
)
FIRST_NAMES = words_of(
    """
    Adela Agnes Albert Alma Anders Anna Anton Arne Astrid August Beata Benno Berta Boris Bruno Carla Casper Cecily
    Clara Conrad Cora Dagmar Daniel Dora Edgar Edith Egon Elin Elise Emil Emma Erik Erna Ernest Esther Eva Felix
    Fiona Flora Frank Frida Gerda Gideon Greta Gustav Hanna Harald Hedda Helen Henrik Hilda Hugo Ida Igor Ines
    Ingrid Irma Isaac Ivar Jakob Jana Jasper Joan Jonas Josef Julia Karin Karl Katrin Klara Konrad Lars Laura Lena
    Leo Lina Linus Lotte Louis Lucy Ludwig Magda Magnus Maria Marta Martin Matilda Max Mira Moritz Nadia Nils Nora
    Olaf Olga Oscar Otto Paula Peter Petra Quentin Rasmus Rita Robert Roland Rosa Rudolf Ruth Samuel Sigrid Simon
    Sofia Stella Sven Tessa Theo Thora Tilda Tobias Ulrich Ursula Vera Viktor Viola Walter Wanda Wilma Xenia Yvonne
    Zelda
    """
)
_SURNAME_STARTS = words_of(
    "Ack Bel Bran Cald Dorn Eck Fal Gar Hal Hol Ing Kal Kers Lan Lin Mar Mel Nor Ost Pel Quin Ros Sand"
)
_SURNAME_ENDS = words_of(
    """
    berg by dahl den feld gren hart holm house kin land ling low man mer nick ridge son stad stone ton ward well
    """
)
SURNAMES = tuple(a + b for a, b in product(_SURNAME_STARTS, _SURNAME_ENDS))
_PLACE_STARTS = words_of(
    "Ald Ash Bar Bir Brack Cor Cress Dun Eld Fen Grim Hav Hex Kel Lang Lim Mor Nes Old Pen Rav Scar Thorn Wal"
)
_PLACE_ENDS = words_of(
    """
    beck bourne bridge bury castle cliff combe croft dale ford gate ham haven hurst ley mere mouth port stead wick
    """
)
PLACES = tuple(a + b for a, b in product(_PLACE_STARTS, _PLACE_ENDS))
MONTHS = words_of("January February March April May June July August September October November December")
WORDS = tuple(dict.fromkeys((*ADJECTIVES, *OBJECTS, *GOODS, *PROFESSIONS)))
"""Single words, each once, for word lists."""
COINED = tuple(
    a + b
    for a, b in product(
        words_of("ba ce di fo gu ha ji ko lu ma ne pi ro su ta ve wi xo yu za"),
        words_of("dran fip glon kesh lond mim narp quil rast sund tov vex wum yal zork"),
    )
)
"""Words of no language: nothing but the text says how often they occur."""
