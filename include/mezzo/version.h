#pragma once

#include "mezzo/cpp20.h"

/// The version of mezzo, as `"MAJOR.MINOR.PATCH"`. CMake reads it from this line.
#define MEZZO_VERSION "0.1.0"

namespace mezzo {

/// Checks that this process has loaded the LibTorch minor version that mezzo was compiled with,
/// such as 2.13. Another minor version has other functions and other class layouts.
///
/// mezzo's operators check the version when they are loaded, and throw at their first call. The
/// program `mezzo` checks it at its start. Thread-safe. Never waits for a device.
/// @throws c10::Error  that names both versions
void check_libtorch_version();

}  // namespace mezzo
