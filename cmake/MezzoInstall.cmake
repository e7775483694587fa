# Install rules and the CMake package: find_package(mezzo) gives mezzo::mezzo, and
# mezzo::distributed and mezzo::text where they were built. mezzo::encoder is exported for
# mezzo::text to link with: it has no public headers.
include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/mezzo")

set(_targets mezzo)
if(MEZZO_BUILD_DISTRIBUTED)
  list(APPEND _targets mezzo_distributed)
endif()
if(MEZZO_BUILD_TEXT)
  list(APPEND _targets mezzo_encoder mezzo_text)
  install(TARGETS mezzo_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  if(TARGET mezzo_parquet)
    install(TARGETS mezzo_parquet LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/mezzo")
  endif()
endif()
install(TARGETS ${_targets} EXPORT mezzoTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY include/mezzo DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT mezzoTargets NAMESPACE mezzo:: DESTINATION "${_package_dir}")

configure_package_config_file(cmake/mezzoConfig.cmake.in "${CMAKE_BINARY_DIR}/mezzoConfig.cmake"
  INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/mezzoConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/mezzoConfig.cmake" "${CMAKE_BINARY_DIR}/mezzoConfigVersion.cmake"
  cmake/MezzoTorch.cmake DESTINATION "${_package_dir}")
