# In the installed folder: libraries look for LibTorch and pyarrow beside the package. Other targets of mezzo share some of these
# files, so INSTALL_RPATH cannot say it. file(RPATH_SET) is what CMake's own install rules call.
file(GLOB files "${CMAKE_INSTALL_PREFIX}/${folder}/*mezzo*")
foreach(file IN LISTS files)
  execute_process(COMMAND "${strip}" "${file}" COMMAND_ERROR_IS_FATAL ANY)
  if(file MATCHES "parquet")
    file(RPATH_SET FILE "${file}" NEW_RPATH "$ORIGIN/../../pyarrow")
  else()
    file(RPATH_SET FILE "${file}" NEW_RPATH "$ORIGIN:$ORIGIN/../../torch/lib")
  endif()
endforeach()
