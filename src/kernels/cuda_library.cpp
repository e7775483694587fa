#include "kernels/cuda_library.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <string_view>

namespace mezzo {

const CudaLibrary* cuda_library() {
  static const CudaLibrary* const library = []() -> const CudaLibrary* {
    if (!at::detail::getCUDAHooks().hasCUDART()) {
      return nullptr;
    }
    try {
      return &open_cuda_library("libmezzo_cuda.so");
    } catch (const c10::Error& error) {
      TORCH_WARN("mezzo has no kernels for GPUs (", error.what_without_backtrace(),
                 "): LibTorch's slower operations run instead. Keep the libmezzo_cuda.so of this build beside "
                 "libmezzo.so; a build without nvcc has none.");
      return nullptr;
    }
  }();
  return library;
}

const CudaLibrary& open_cuda_library(const char* file) {
  void* const opened = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  auto* const get = opened == nullptr
                        ? nullptr
                        : reinterpret_cast<decltype(&mezzo_cuda_library)>(::dlsym(opened, "mezzo_cuda_library"));
  TORCH_CHECK(get != nullptr, ::dlerror());
  const CudaLibrary& library = get(&SideStream::fork);
  TORCH_CHECK(std::string_view(library.build) == CudaLibrary::kBuild, file, " is of ", library.build, ", and this is ",
              CudaLibrary::kBuild);
  return library;
}

}  // namespace mezzo
