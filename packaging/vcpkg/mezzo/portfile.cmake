# An overlay port: it builds the sources that it lies among, which vcpkg does not see change. LibTorch is no port here: mezzo finds that
# of the python3 on the path, or what Torch_DIR in the triplet's VCPKG_CMAKE_CONFIGURE_OPTIONS says.
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
vcpkg_check_linkage(ONLY_STATIC_LIBRARY)
vcpkg_check_features(OUT_FEATURE_OPTIONS FEATURE_OPTIONS FEATURES text MEZZO_BUILD_TEXT)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS ${FEATURE_OPTIONS} -DMEZZO_BUILD_SHARED=OFF -DMEZZO_BUILD_TESTS=OFF -DMEZZO_WERROR=OFF -DMEZZO_VENV=none -DCMAKE_UNITY_BUILD=ON)
vcpkg_cmake_install()
set(X_VCPKG_RPATH_KEEP_SYSTEM_PATHS ON) # the program finds LibTorch where it lies
vcpkg_cmake_config_fixup(CONFIG_PATH lib/cmake/mezzo)
vcpkg_fixup_pkgconfig()
if("text" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES mezzo AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
