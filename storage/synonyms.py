"""Everyday words with the same sense: people rarely ask in a document's own words.

A short general list, one group a line. A match through it counts less than the word itself.
"""

_GROUPS = """
able capable
abbreviation acronym
accept agree consent approve
accident incident
account user
accurate exact precise
achieve reach attain
address location
advantage benefit
aim goal purpose objective
allow permit let authorize permission
alter change modify edit adapt
amount quantity number sum
annual yearly
answer reply response respond
apartment flat
appear show display
argument parameter option
arrange organize order
ask request query prompt
assess evaluate judge
assist help support aid
attempt try
author writer
avoid prevent
background daemon
bad poor wrong
ban forbid prohibit
begin start commence
big large
book manual guide
boost increase raise grow rise
boss manager supervisor
breach break violate violation infringe
bring carry
broken faulty defective damaged
bug error defect fault mistake
build compile construct make
buy purchase acquire
calculate compute
cancel abort terminate
car vehicle
careful caution
cause reason
cheap inexpensive
check verify test validate examine inspect
choose select pick
clear erase delete
client customer
close shut
code status
collect gather
combine merge join
company firm business enterprise corporation
compare contrast
complete entire whole full
computer machine host system
confirm acknowledge
connect link attach join
contain include hold comprise
contract agreement
cost price fee charge expense
country nation state
create make generate produce
danger risk hazard
data information
date day
deadline limit
dealing handling
decide determine
decline decrease reduce drop fall
default fallback
delete remove erase discard
describe explain define
device unit
difference distinction
difficult hard
directory folder
disable deactivate switch turn
disease illness
distinguish differentiate
doctor physician
draft outline
drug medicine medication
dwelling house home
earnings income revenue profit
effect result outcome consequence impact
employee staff worker personnel
enable activate switch turn
end finish stop terminate conclude
enough sufficient adequate
error mistake failure fault
estimate approximate
example sample instance
execute run invoke
exit leave quit
expire lapse
fast quick rapid speed
fix repair correct solve
forbid prohibit disallow
force require oblige
free available
frequently often
function routine procedure
gap space blank
get obtain retrieve fetch receive
guarantee warranty
guideline rule policy
hide conceal mask
hire employ recruit
holiday vacation
id identifier
ignore skip
important significant essential crucial
improve enhance
inform notify tell
initial first
insert add
install setup
internet network web online
interrupt break
invoice bill
job task work
keep retain preserve store save
kill terminate
language translation
last final
law legislation statute
leave retire quit resign depart
length long size
letter character
licence license
liable responsible
link reference
list enumerate
local regional
look search find
lose loss
maintain support
many multiple several
maximum most highest limit
mean average
measure metric
meeting conference
member participant
method approach technique way
minimum least lowest
missing absent lacking vanished
mistake error
money funds cash
monitor watch observe
move transfer relocate
name title
necessary required mandatory needed
new recent
notice notification
number count
obey comply follow
old previous former
omit skip
open launch
operate run
opposite inverse reverse
order sequence
origin source
output result
owner holder
parallel concurrent simultaneous
parent ancestor
part portion section component
password passphrase
pause suspend
pay payment
people persons
permission right authorization privilege
place location position
plan schedule
possible feasible
power energy
predict forecast
print show display
probability likelihood chance
problem issue trouble
process procedure
program application software
proof evidence
property attribute
protect secure
publish release distribute
pupil student
question query
reboot restart
rebuild recompile
recommend suggest advise
refuse reject deny decline
remember store
remote distant
rent lease
repeat iterate loop
replace substitute
report statement
require need demand
restore recover
restrict limit constrain
salary wage pay
scope range
screen display monitor
secret confidential private
send transmit submit
separate split divide
sequence series
service daemon server
share portion
shorten abbreviate truncate
show display print
sign symbol
similar alike
simple easy
small little
speed rate velocity
stage phase step
standard norm
store save
strange unusual odd
sum total
summary synopsis abstract overview
symbol sign
teach train
teacher instructor
tenant lessee
text string
tool utility
trash garbage
type kind sort
typical usual common normal
undo revert
uninstall remove
update upgrade
use usage utilize
value content
variable parameter
version release
view look see
visible shown
warn alert
web internet
wildcard glob globbing
wrong incorrect invalid
wound injury
year annual
"""


def _table() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for line in _GROUPS.split("\n"):
        group = line.split()
        for word in group:
            found.setdefault(word, {}).update((other, None) for other in group if other != word)
    return {word: tuple(others) for word, others in found.items()}


_SYNONYMS = _table()
_ENDINGS = (
    ("ies", "y"),
    ("ied", "y"),
    ("es", ""),
    ("es", "e"),
    ("s", ""),
    ("ed", ""),
    ("ed", "e"),
    ("ing", ""),
    ("ing", "e"),
)


def synonyms(word: str) -> tuple[str, ...]:
    """Other words for a lower-case English word or a plain inflection of it; empty for most words."""
    if word in _SYNONYMS:
        return _SYNONYMS[word]
    for ending, base in _ENDINGS:
        if word.endswith(ending) and len(word) > len(ending) + 2 and word[: -len(ending)] + base in _SYNONYMS:
            return _SYNONYMS[word[: -len(ending)] + base]
    return ()
