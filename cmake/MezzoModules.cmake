# mezzo_add_library(TARGET NAME [SHARED] [LIBRARIES]): mezzo::NAME, to be filled with modules, and
# what its users link with it. TARGET_objects compiles the sources of its modules. Without SHARED,
# BUILD_SHARED_LIBS decides.
function(mezzo_add_library target name)
  cmake_parse_arguments(PARSE_ARGV 2 library "SHARED" "" "")
  if(library_SHARED)
    add_library(${target} SHARED)
  else()
    add_library(${target})
  endif()
  add_library(mezzo::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PUBLIC ${library_UNPARSED_ARGUMENTS})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL SHARED_LIBRARY)
    # SOVERSION: the first two numbers of the version, as find_package compares them. The library looks for libmezzo_cuda.so beside
    # itself, and for LibTorch, too.
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
      BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN;$ORIGIN/mezzo/torch/lib;${MEZZO_TORCH_ROOT}/lib")
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
      target_link_options(${target} PRIVATE LINKER:-z,lazy) # the program tells of a LibTorch of another version
    endif()
  elseif(CMAKE_SYSTEM_NAME STREQUAL "Linux") # a user's shared library exports no function of mezzo
    target_link_options(${target} INTERFACE LINKER:--exclude-libs,lib${target}.a)
  endif()
  set(objects ${target}_objects)
  add_library(${objects} OBJECT)
  target_compile_features(${objects} PRIVATE cxx_std_20)
  target_compile_options(${objects} PRIVATE -fno-semantic-interposition) # calls within a source stay direct
  target_include_directories(${objects} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(${objects} PRIVATE mezzo::torch mezzo_warnings)
  target_precompile_headers(${objects} REUSE_FROM mezzo_pch)
  set_target_properties(${objects} PROPERTIES UNITY_BUILD_MODE GROUP)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

# mezzo_add_module(LIBRARY FOLDER UNIT SOURCES ... [NEEDS ...] [LINKS ...])
# A module: the sources of one idea, in src/FOLDER, put into LIBRARY. NEEDS lists the folders of the
# modules whose headers it may include. They must be declared before it. tests/python/test_modules.py
# compares the include lines with NEEDS. With CMAKE_UNITY_BUILD, modules of the same UNIT are compiled
# as one source.
function(mezzo_add_module library folder)
  cmake_parse_arguments(PARSE_ARGV 2 module "" "UNIT" "SOURCES;NEEDS;LINKS")
  get_property(declared GLOBAL PROPERTY MEZZO_MODULES)
  foreach(need IN LISTS module_NEEDS)
    if(NOT need IN_LIST declared)
      message(FATAL_ERROR "the module ${folder} needs ${need}, which is not declared before it")
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY MEZZO_MODULES ${folder})
  list(TRANSFORM module_SOURCES PREPEND "${PROJECT_SOURCE_DIR}/src/${folder}/")
  target_sources(${library}_objects PRIVATE ${module_SOURCES})
  set_source_files_properties(${module_SOURCES} PROPERTIES UNITY_GROUP ${module_UNIT})
  target_link_libraries(${library}_objects PRIVATE ${module_LINKS})
endfunction()

# mezzo_add_simd_sources(LIBRARY FOLDER INSTRUCTION_SETS ... SOURCES ... [OPTIONS ...])
# Sources of the module that are compiled once per instruction set, into a namespace of its name, and
# put into LIBRARY. Instruction sets of x86 are compiled only for x86.
# src/kernels/cpu/simd/instruction_set.h says how one is chosen when the program runs.
set(MEZZO_OPTIONS_FOR_avx2 -march=x86-64-v3)
set(MEZZO_OPTIONS_FOR_avx2_vnni -march=x86-64-v3 -mavxvnni)
set(MEZZO_OPTIONS_FOR_avx512 -march=x86-64-v4)
set(MEZZO_OPTIONS_FOR_avx512_bf16 -march=x86-64-v4 -mavx512bf16 -mavx512vnni)
set(MEZZO_OPTIONS_FOR_avx512_amx ${MEZZO_OPTIONS_FOR_avx512_bf16} -mamx-tile -mamx-bf16 -mamx-int8)
if(MEZZO_BUILD_FUZZERS OR CMAKE_CXX_FLAGS_DEBUG MATCHES "-fsanitize=thread")
  set(MEZZO_OPTIONS_FOR_avx512_amx -march=x86-64-v4)
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
