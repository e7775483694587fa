#pragma once

/// mezzo's version. CMake reads it from here.
#define MEZZO_VERSION "0.1.0"
