#pragma once

/// The namespace of the modules' cuda/ folders: `cuda`, except when the tests compile the same sources for the CPU.
#ifndef MEZZO_CUDA
#define MEZZO_CUDA cuda
#endif
