# Install rules and the CMake package: find_package(mezzo) gives mezzo::mezzo, and
# mezzo::distributed and mezzo::text if they were built. mezzo::encoder is exported for mezzo::text
# to link with: it has no public headers.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/mezzo")

set(_targets mezzo)
if(MEZZO_BUILD_DISTRIBUTED)
  list(APPEND _targets mezzo_distributed)
endif()
if(MEZZO_BUILD_TEXT)
  list(APPEND _targets mezzo_encoder mezzo_text)
  install(TARGETS mezzo_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # Installs the program's output, such as its manual page: WORDS of its command line, and the file
  # for the output.
  function(_install_said words file)
    cmake_path(GET file PARENT_PATH folder)
    set(made "${PROJECT_BINARY_DIR}/said/${file}")
    separate_arguments(words)
    list(JOIN words "\" \"" words)
    install(CODE "file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/said/${folder}\")
      execute_process(COMMAND \"$<TARGET_FILE:mezzo_program>\" \"${words}\" OUTPUT_FILE \"${made}\" COMMAND_ERROR_IS_FATAL ANY)")
    install(FILES "${made}" DESTINATION "${CMAKE_INSTALL_DATADIR}/${folder}")
  endfunction()
  _install_said("manual" man/man1/mezzo.1)
  _install_said("completion bash" bash-completion/completions/mezzo)
  _install_said("completion zsh" zsh/vendor-completions/_mezzo)
  _install_said("completion fish" fish/vendor_completions.d/mezzo.fish)
  if(TARGET mezzo_parquet)
    install(TARGETS mezzo_parquet LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/mezzo")
  endif()
endif()
install(TARGETS ${_targets} EXPORT mezzoTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
if(MEZZO_HAS_CUDA)
  install(TARGETS mezzo_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
install(DIRECTORY include/mezzo DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT mezzoTargets NAMESPACE mezzo:: DESTINATION "${_package_dir}")

configure_package_config_file(cmake/mezzoConfig.cmake.in "${PROJECT_BINARY_DIR}/mezzoConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mezzoConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/mezzoConfig.cmake" "${PROJECT_BINARY_DIR}/mezzoConfigVersion.cmake"
  cmake/MezzoTorch.cmake DESTINATION "${_package_dir}")

# For builds without CMake.
file(RELATIVE_PATH prefix_from_pkgconfig "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
set(openmp "${OpenMP_CXX_FLAGS}")
get_target_property(_definitions mezzo::torch INTERFACE_COMPILE_DEFINITIONS)
list(TRANSFORM _definitions PREPEND " -D")
list(JOIN _definitions "" torch_definitions)
set(_packages mezzo)
if(MEZZO_BUILD_DISTRIBUTED)
  list(APPEND _packages mezzo-distributed)
endif()
if(MEZZO_BUILD_TEXT)
  list(APPEND _packages mezzo-text)
  get_target_property(_libraries mezzo_text LINK_LIBRARIES)
  list(FILTER _libraries EXCLUDE REGEX "^mezzo|::|\\$")
  list(TRANSFORM _libraries PREPEND "-l" REGEX "^[^-]")
  list(TRANSFORM _libraries PREPEND " ")
  list(JOIN _libraries "" text_libraries)
endif()
foreach(package IN LISTS _packages)
  configure_file("cmake/${package}.pc.in" "${PROJECT_BINARY_DIR}/${package}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${package}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()

# cpack -G DEB: what cmake --install installs, as a Debian package.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME mezzo)
  set(CPACK_PACKAGE_CONTACT "the mezzo authors")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  # Debian has no package of this version of LibTorch: docs/installing.md names the places in which the
  # program looks for it.
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libstdc++6, zlib1g, libzstd1, libuchardet0, libmicrohttpd12, libonig5, libcurl4, libssl3, ca-certificates")
  include(CPack)
endif()
