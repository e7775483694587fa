# Builds, installs and uses the overlay port in packaging/vcpkg without vcpkg. The functions below replace vcpkg's helpers, as far
# as the port uses them. FEATURES: of the port. WORK_DIR: for all that is made. TORCH_DIR: LibTorch's CMake package. VOCAB: for
# the consumer.
#   cmake -DFEATURES=text -DWORK_DIR=DIR -DTORCH_DIR=DIR -DVOCAB=FILE -P vcpkg_port.cmake
cmake_minimum_required(VERSION 3.25)
set(PORT mezzo)
set(consumer "${CMAKE_CURRENT_LIST_DIR}")
set(port_dir "${consumer}/../../packaging/vcpkg/${PORT}")
set(CURRENT_PACKAGES_DIR "${WORK_DIR}/packages/${PORT}")
file(REMOVE_RECURSE "${WORK_DIR}")

function(vcpkg_check_linkage)
endfunction()

function(vcpkg_check_features)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "OUT_FEATURE_OPTIONS" "FEATURES")
  list(GET arg_FEATURES 0 feature)
  list(GET arg_FEATURES 1 option)
  if(feature IN_LIST FEATURES)
    set(${arg_OUT_FEATURE_OPTIONS} "-D${option}=ON" PARENT_SCOPE)
  else()
    set(${arg_OUT_FEATURE_OPTIONS} "-D${option}=OFF" PARENT_SCOPE)
  endif()
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(COMMAND "${CMAKE_COMMAND}" -G Ninja -S "${arg_SOURCE_PATH}" -B "${WORK_DIR}/build" -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" -DCMAKE_INSTALL_LIBDIR=lib "-DTorch_DIR=${TORCH_DIR}" ${arg_OPTIONS}
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --target install COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# To share/PORT, a folder less deep.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  set(share "${CURRENT_PACKAGES_DIR}/share/${PORT}")
  file(MAKE_DIRECTORY "${CURRENT_PACKAGES_DIR}/share")
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${share}")
  file(READ "${share}/mezzoConfig.cmake" text)
  string(REPLACE "/../../../" "/../../" text "${text}")
  file(WRITE "${share}/mezzoConfig.cmake" "${text}")
  file(READ "${share}/mezzoTargets.cmake" text)
  set(up "get_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n")
  string(REPLACE "${up}${up}${up}" "${up}${up}" text "${text}")
  file(WRITE "${share}/mezzoTargets.cmake" "${text}")
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_copy_tools)
  cmake_parse_arguments(PARSE_ARGV 0 arg "AUTO_CLEAN" "" "TOOL_NAMES")
  foreach(tool IN LISTS arg_TOOL_NAMES)
    file(INSTALL "${CURRENT_PACKAGES_DIR}/bin/${tool}" DESTINATION "${CURRENT_PACKAGES_DIR}/tools/${PORT}" USE_SOURCE_PERMISSIONS)
  endforeach()
  file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/bin")
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}" RENAME copyright)
endfunction()

include("${port_dir}/portfile.cmake")

set(use "${CMAKE_COMMAND};-G;Ninja;-S;${consumer};-B;${WORK_DIR}/consumer;-DCMAKE_PREFIX_PATH=${CURRENT_PACKAGES_DIR};-DTorch_DIR=${TORCH_DIR}")
execute_process(COMMAND ${use} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK_DIR}/consumer" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK_DIR}/consumer/consumer" COMMAND_ERROR_IS_FATAL ANY)
if("text" IN_LIST FEATURES)
  execute_process(COMMAND "${WORK_DIR}/consumer/text_consumer" "${VOCAB}" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CURRENT_PACKAGES_DIR}/tools/mezzo/mezzo" --version COMMAND_ERROR_IS_FATAL ANY)
endif()
