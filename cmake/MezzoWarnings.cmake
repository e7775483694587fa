# mezzo_warnings: the warnings of our own builds. Never reaches a user of the library.
add_library(mezzo_warnings INTERFACE)
target_compile_options(mezzo_warnings INTERFACE -Wall -Wextra -Wshadow $<$<BOOL:${MEZZO_WERROR}>:-Werror>)
# gcc 13 and newer take a reference that a view returns (JsonField) for one into the view.
target_compile_options(mezzo_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-dangling-reference>)
if(CMAKE_UNITY_BUILD)
  # gcc takes a source that is included into another for a header, where unnamed
  # namespaces would be a mistake.
  target_compile_options(mezzo_warnings INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
