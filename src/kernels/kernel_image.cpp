#include "kernels/kernel_image.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/per_device.h"

namespace mezzo::kernels {
namespace {

enum class Image : int8_t { kUnknown, kPresent, kMissing };

PerDevice<WhyNoKernelImage>& checks() {
  static PerDevice<WhyNoKernelImage> checks(&CudaLibrary::why_no_image);
  return checks;
}

using ImagesOfType = std::array<std::atomic<Image>, 128>;

ImagesOfType& images_of(c10::DeviceType device_type) {
  static std::array<ImagesOfType, c10::COMPILE_TIME_MAX_DEVICE_TYPES> images{};
  return images[static_cast<size_t>(device_type)];
}

}  // namespace

bool has_kernel_image(c10::Device device) {
  const WhyNoKernelImage check = checks().of(device.type());
  if (check == nullptr) {
    return true;
  }
  const auto index = std::max<c10::DeviceIndex>(device.index(), 0);
  std::atomic<Image>& image = images_of(device.type())[static_cast<size_t>(index)];
  if (image == Image::kUnknown) {
    const std::string reason = check(index);
    const Image found = reason.empty() ? Image::kPresent : Image::kMissing;
    if (image.exchange(found) == Image::kUnknown && !reason.empty()) {
      TORCH_WARN("mezzo has no kernels for ", device, " (", reason,
                 "): LibTorch's slower operations run instead. Update the driver if it is too old; else build mezzo "
                 "with the device's compute capability in MEZZO_CUDA_ARCHITECTURES.");
    }
  }
  return image == Image::kPresent;
}

void set_kernel_image_check(c10::DeviceType device_type, WhyNoKernelImage check) {
  checks().set(device_type, check);
  for (std::atomic<Image>& image : images_of(device_type)) {
    image = Image::kUnknown;
  }
}

}  // namespace mezzo::kernels
