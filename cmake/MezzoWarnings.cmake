# mezzo_warnings: the warnings of our own builds. Never reaches a user of the library.
add_library(mezzo_warnings INTERFACE)
target_compile_options(mezzo_warnings INTERFACE -Wall -Wextra -Wshadow $<$<BOOL:${MEZZO_WERROR}>:-Werror>)
