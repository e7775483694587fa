#pragma once

#include "mezzo/cpp20.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mezzo::text {

/// The arithmetic of matrix products: float32, or autocast to half a float's bits.
enum class Precision { kFloat32, kBFloat16, kFloat16 };

/// "fp32", "bf16" or "fp16", as the command line spells them.
std::string_view to_string(Precision precision);

/// The dtype to autocast to; nullopt for float32.
std::optional<c10::ScalarType> autocast_dtype(Precision precision);

/// Parses "fp32", "bf16", "fp16", or "auto": bf16 where `device` multiplies it in hardware, else
/// fp16 on CUDA and fp32 elsewhere.
/// @throws c10::ValueError  that lists the names, for any other
Precision parse_precision(std::string_view name, const c10::Device& device);

/// Whether a name can be parsed at all, on whatever machine: `--precision` and
/// `--device` of a command line.
/// @param may_be_int8  whether "int8" is one of the names: ModelForTask::quantize().
/// @throws c10::ValueError  that lists the names, and guesses which was meant.
void check_precision(std::string_view name, bool may_be_int8 = false);
void check_device(std::string_view name);

/// 0 on a LibTorch without CUDA. Does not make a CUDA context.
int64_t cuda_device_count();

/// Parses "cpu", "cuda", "cuda:N", or "auto": the first CUDA device where there is one, else the
/// CPU; and the name of an accelerator that this process has registered with LibTorch (PrivateUse1).
/// @throws c10::ValueError  for any other name, or a device this machine lacks
c10::Device parse_device(std::string_view name);

}  // namespace mezzo::text
