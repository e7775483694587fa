/// The functions of libcurl that mezzo calls, from the machine's libcurl, which is opened at the first call. It knows
/// the place of the distribution's certificates, so a wheel brings none.
#include <curl/curl.h>
#include <dlfcn.h>

#include <cstdarg>

#include "text/hub/hub_client.h"

namespace {

void* libcurl() {
  static void* const library = [] {
    void* found = ::dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    return found != nullptr ? found : ::dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
  }();
  if (library == nullptr) {
    throw mezzo::text::HubUnreachable(
        "downloads need libcurl.so.4, which this machine lacks. Install the system's package libcurl4 (Debian, Ubuntu) "
        "or libcurl (others), or name a folder that holds the model");
  }
  return library;
}

template <class Function>
Function* in_libcurl(Function&, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(libcurl(), name));
}

}  // namespace

#undef curl_easy_setopt
#undef curl_easy_getinfo
#define MEZZO_IN_LIBCURL(name) in_libcurl(name, #name)

extern "C" {

CURLcode curl_global_init(long flags) { return MEZZO_IN_LIBCURL(curl_global_init)(flags); }
CURL* curl_easy_init() { return MEZZO_IN_LIBCURL(curl_easy_init)(); }
void curl_easy_cleanup(CURL* handle) { MEZZO_IN_LIBCURL(curl_easy_cleanup)(handle); }
void curl_easy_reset(CURL* handle) { MEZZO_IN_LIBCURL(curl_easy_reset)(handle); }
CURLcode curl_easy_perform(CURL* handle) { return MEZZO_IN_LIBCURL(curl_easy_perform)(handle); }
const char* curl_easy_strerror(CURLcode code) { return MEZZO_IN_LIBCURL(curl_easy_strerror)(code); }
curl_slist* curl_slist_append(curl_slist* list, const char* line) {
  return MEZZO_IN_LIBCURL(curl_slist_append)(list, line);
}
void curl_slist_free_all(curl_slist* list) { MEZZO_IN_LIBCURL(curl_slist_free_all)(list); }

// Their last argument is a pointer or a long, which have the same size.
CURLcode curl_easy_setopt(CURL* handle, CURLoption option, ...) {
  std::va_list rest;
  va_start(rest, option);
  void* const value = va_arg(rest, void*);
  va_end(rest);
  return MEZZO_IN_LIBCURL(curl_easy_setopt)(handle, option, value);
}
CURLcode curl_easy_getinfo(CURL* handle, CURLINFO info, ...) {
  std::va_list rest;
  va_start(rest, info);
  void* const value = va_arg(rest, void*);
  va_end(rest);
  return MEZZO_IN_LIBCURL(curl_easy_getinfo)(handle, info, value);
}

}  // extern "C"
