# Installs the build at BUILD_DIR into WORK_DIR. Configures, builds and runs a project that uses it, and builds all
# examples in the same way.
file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")
foreach(command IN ITEMS
    "${CMAKE_COMMAND};--install;${BUILD_DIR};--prefix;${prefix}"
    "${CMAKE_COMMAND};-G;Ninja;-S;${SOURCE_DIR};-B;${WORK_DIR}/build;-DCMAKE_PREFIX_PATH=${prefix}\\;${TORCH_ROOT}"
    "${CMAKE_COMMAND};--build;${WORK_DIR}/build"
    "${CMAKE_COMMAND};-G;Ninja;-S;${SOURCE_DIR}/../../examples;-B;${WORK_DIR}/examples;-DCMAKE_PREFIX_PATH=${prefix}\\;${TORCH_ROOT}"
    "${CMAKE_COMMAND};--build;${WORK_DIR}/examples"
    "${WORK_DIR}/examples/example_distributed_data_parallel"
    "${WORK_DIR}/build/consumer"
    "${WORK_DIR}/build/text_consumer;${VOCAB}"
    "bash;${SOURCE_DIR}/with_pkg_config.sh;${prefix};${SOURCE_DIR};${WORK_DIR};${VOCAB}"
    "${prefix}/bin/mezzo;--version")
  execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
