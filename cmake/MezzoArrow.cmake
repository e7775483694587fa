# Defines mezzo_arrow, by which the module that reads Parquet is built, where Arrow's C++ libraries
# are: in MEZZO_ARROW_ROOT, or in the Python package pyarrow of MEZZO_VENV. Its libraries bear
# their version in their names.
set(MEZZO_ARROW_ROOT "" CACHE PATH "A folder with Arrow's and Parquet's headers in include/, and their libraries there or in lib/")
set(_mezzo_arrow "${MEZZO_ARROW_ROOT}")
if(NOT _mezzo_arrow)
  execute_process(
    COMMAND "${MEZZO_VENV}/bin/python" -c "from importlib.util import find_spec as f; print(f('pyarrow').submodule_search_locations[0])"
    OUTPUT_VARIABLE _mezzo_arrow OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(_mezzo_arrow_libraries)
foreach(name IN ITEMS parquet arrow)
  file(GLOB found "${_mezzo_arrow}/lib${name}.so*" "${_mezzo_arrow}/lib/lib${name}.so*")
  if(found)
    list(GET found 0 library)
    list(APPEND _mezzo_arrow_libraries "${library}")
  endif()
endforeach()
list(LENGTH _mezzo_arrow_libraries _mezzo_arrow_count)
if(_mezzo_arrow AND _mezzo_arrow_count EQUAL 2 AND EXISTS "${_mezzo_arrow}/include/parquet/arrow/reader.h")
  add_library(mezzo_arrow INTERFACE)
  target_include_directories(mezzo_arrow SYSTEM INTERFACE "${_mezzo_arrow}/include")
  target_link_libraries(mezzo_arrow INTERFACE ${_mezzo_arrow_libraries})
  list(GET _mezzo_arrow_libraries 0 _mezzo_arrow)
  get_filename_component(MEZZO_ARROW_LIBRARIES "${_mezzo_arrow}" DIRECTORY) # the folder that they lie in
else()
  message(STATUS "mezzo: without Parquet, for which pyarrow is needed in ${MEZZO_VENV}, or MEZZO_ARROW_ROOT")
endif()
