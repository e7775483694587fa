#pragma once

/// What the modules' cuda/ folders hold: the namespace is `cuda`, but where the tests compile the
/// same sources for the CPU.
#ifndef MEZZO_CUDA
#define MEZZO_CUDA cuda
#endif
