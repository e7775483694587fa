#pragma once

#include "mezzo/cpp20.h"

/// mezzo's version. CMake reads it from here.
#define MEZZO_VERSION "0.1.0"

namespace mezzo {

/// Checks that this process has loaded the minor version of LibTorch that mezzo was compiled with,
/// such as 2.13: others have other functions and other layouts of classes. Operators of mezzo check
/// it when they are loaded, and throw at their first call; the program mezzo checks it at its start.
/// Thread-safe. Never waits for a device.
/// @throws c10::Error  that names both versions
void check_libtorch_version();

}  // namespace mezzo
