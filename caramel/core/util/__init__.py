"""Small helpers that know nothing of training jobs (`disk_cache` knows what it keeps).

============== =====================================================================================
`arguments`    checks what public functions are given, in one place: of the type that the
               annotation says, and within limits
`atomic_files` files that are written as a whole or not at all, and are on the disk when that is
               said
`digits`       numbers as short text for people: three digits
`disk_cache`   measured timings, and plans that proved the fastest, on disk for jobs that start
               again
`fingerprint`  which graph is it, and which machine? Answers that are the same in every process
`gc_pause`     Python's cyclic garbage collector, held back while much is made that stays
`json_records` frozen dataclasses to JSON and back, by their annotations
`leftovers`    directories for what is being written tell who made them; what was interrupted is
               removed
`program`      what is the program called that uses the library?
`progress`     work that may take long says so here, to whoever wants to see it: to nobody by
               default
`rows`         names with their values as a table: in text, and in HTML for notebooks
`sizes`        sizes, counts and times, as people write and read them
`stopwatch`    how long do the parts of a build take?
`suggestion`   did you mean ...? For messages about names that do not exist
============== =====================================================================================
"""
