#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The arithmetic of matrix products: float32, or autocast to a 16-bit type.
enum class Precision { kFloat32, kBFloat16, kFloat16 };

/// "fp32", "bf16" or "fp16", as the command line spells them.
std::string_view to_string(Precision precision);

/// The dtype to autocast to; nullopt for float32.
std::optional<c10::ScalarType> autocast_dtype(Precision precision);

/// Parses "fp32", "bf16", "fp16" or "auto". "auto" is bf16 if `device` multiplies it in hardware,
/// else fp16 on CUDA and fp32 on other devices.
/// @throws c10::ValueError  for any other name; the message lists the names
Precision parse_precision(std::string_view name, const c10::Device& device);

/// Checks `--precision` of a command line on any machine, without a device.
/// @param may_be_int8  whether "int8" is one of the names: ModelForTask::quantize()
/// @throws c10::ValueError  for any other name; the message lists the names and the most similar
///     one
void check_precision(std::string_view name, bool may_be_int8 = false);
/// The same for `--device`.
void check_device(std::string_view name);

/// The number of CUDA devices; 0 if LibTorch has no CUDA. Does not make a CUDA context.
int64_t cuda_device_count();

/// Parses "cpu", "cuda", "cuda:N" or "auto": the first CUDA device if there is one, else the CPU.
/// Also parses the name of an accelerator that is registered with LibTorch in this process
/// (PrivateUse1).
/// @throws c10::ValueError  for any other name, or a device that this machine lacks
c10::Device parse_device(std::string_view name);

}  // namespace mezzo::text
