# mezzo_add_room(LIBRARY FOLDER SOURCES ... [NEEDS ...] [LINKS ...])
# A room of the house: the sources of one idea, in src/FOLDER, compiled as a target of their own
# and put into LIBRARY. NEEDS names the rooms, by their folders, whose headers it may include:
# none that is not declared yet, so arrows point down only. tests/python/test_rooms.py holds the
# include lines against it.
function(mezzo_add_room library folder)
  cmake_parse_arguments(PARSE_ARGV 2 room "" "" "SOURCES;NEEDS;LINKS")
  foreach(need IN LISTS room_NEEDS)
    string(REPLACE "/" "_" needed "mezzo_${need}_room")
    if(NOT TARGET ${needed})
      message(FATAL_ERROR "the room ${folder} needs ${need}, which is not declared before it")
    endif()
  endforeach()
  string(REPLACE "/" "_" target "mezzo_${folder}_room")
  if(NOT room_SOURCES)
    add_library(${target} INTERFACE) # headers alone
    return()
  endif()
  list(TRANSFORM room_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/src/${folder}/")
  add_library(${target} OBJECT ${room_SOURCES})
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${target} PRIVATE mezzo::torch mezzo_warnings ${room_LINKS})
  target_precompile_headers(${target} REUSE_FROM mezzo_pch)
  target_sources(${library} PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

# mezzo_add_simd_sources(LIBRARY FOLDER INSTRUCTION_SETS ... SOURCES ... [OPTIONS ...])
# Sources of the room that are compiled once per instruction set, into a namespace of its name, and
# put into LIBRARY; those of x86 only there. src/kernels/cpu/simd/instruction_set.h says how one is
# chosen when the program runs.
set(MEZZO_OPTIONS_FOR_avx2 -march=x86-64-v3)
set(MEZZO_OPTIONS_FOR_avx512 -march=x86-64-v4)
set(MEZZO_OPTIONS_FOR_avx512_bf16 -march=x86-64-v4 -mavx512bf16 -mavx512vnni)
if(MEZZO_BUILD_FUZZERS OR CMAKE_CXX_FLAGS_DEBUG MATCHES "-fsanitize=thread")
  set(MEZZO_OPTIONS_FOR_avx512_bf16 -march=x86-64-v4) # clang 16 crashes over the others
endif()
function(mezzo_add_simd_sources library folder)
  cmake_parse_arguments(PARSE_ARGV 2 simd "" "" "INSTRUCTION_SETS;SOURCES;OPTIONS")
  list(TRANSFORM simd_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/src/${folder}/")
  foreach(isa IN LISTS simd_INSTRUCTION_SETS)
    if(isa STREQUAL baseline OR CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      set(target "mezzo_${folder}_${isa}")
      add_library(${target} OBJECT ${simd_SOURCES})
      target_compile_features(${target} PRIVATE cxx_std_20)
      target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
      target_compile_definitions(${target} PRIVATE MEZZO_SIMD=${isa})
      # gcc's -O2 leaves loops scalar. (In builds with sanitizers gcc 12 crashes over them at -O3.)
      target_compile_options(${target} PRIVATE ${simd_OPTIONS} ${MEZZO_OPTIONS_FOR_${isa}} $<$<NOT:$<CONFIG:Debug>>:-O3>)
      target_link_libraries(${target} PRIVATE mezzo_warnings)
      set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
      target_sources(${library} PRIVATE $<TARGET_OBJECTS:${target}>)
    endif()
  endforeach()
endfunction()

# mezzo_add_library(TARGET NAME [LIBRARIES]): mezzo::NAME, to be filled with rooms, and
# what its users link with it.
function(mezzo_add_library target name)
  add_library(${target})
  add_library(mezzo::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PUBLIC ${ARGN})
endfunction()
