# Checks that the compiler warns of each line of SOURCE that ends in "warns", and of no other. Arguments:
# COMPILER, SOURCE, and INCLUDES, folders divided by commas.
string(REPLACE "," ";-I" includes "-I${INCLUDES}")
execute_process(COMMAND "${COMPILER}" -std=c++20 -fsyntax-only ${includes} "${SOURCE}"
  RESULT_VARIABLE failed ERROR_VARIABLE output)
if(failed)
  message(FATAL_ERROR "${output}")
endif()
file(STRINGS "${SOURCE}" lines REGEX "// warns$")
string(REGEX MATCHALL "warning: ignoring" discarded "${output}")
string(REGEX MATCHALL "warning: " warnings "${output}")
list(LENGTH lines num_lines)
list(LENGTH discarded num_discarded)
list(LENGTH warnings num_warnings)
if(NOT num_discarded EQUAL num_lines OR NOT num_warnings EQUAL num_lines)
  message(FATAL_ERROR "${num_lines} guards are discarded. Of ${num_warnings} warnings, ${num_discarded} say so:\n${output}")
endif()
