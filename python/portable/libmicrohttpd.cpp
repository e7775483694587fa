/// libmicrohttpd.a calls GnuTLS for HTTPS, which `mezzo serve` does not offer. CMake makes its references to GnuTLS
/// weak. Here are the functions that it calls without HTTPS, and its variables: objects of Debian's archives reach only
/// those in the same library.
#include <cstddef>
#include <cstdio>

extern "C" {

int gnutls_global_init() { return 0; }
void gnutls_global_deinit() {}
void* (*gnutls_malloc)(size_t) = nullptr;
FILE* mezzo_stderr = stderr;

}  // extern "C"
