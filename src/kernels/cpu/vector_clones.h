#pragma once

/// Compiles a function once per instruction set; the program picks one when it starts. For loops written to be
/// vectorised, in files that src/CMakeLists.txt compiles with -O3.
#ifdef __SANITIZE_THREAD__  // whose runtime is not up yet when the program picks
#define MEZZO_VECTOR_CLONES
#else
#define MEZZO_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
