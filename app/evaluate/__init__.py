"""The quality suite behind `unabridged eval`: tasks whose answers are planted, asked through modes and KV formats.

In order: `words` and `prose` write haystacks, `sample` fits them to a length, `retrieval`, `lists`, `reading` and
`repository` are the tasks, `tasks` names them all, `scoring` judges an answer, `prompts` makes token ids, `measure`
asks one engine, `run` goes through everything, `statistics` compares with dense, `report` and `plots` show it.
"""
