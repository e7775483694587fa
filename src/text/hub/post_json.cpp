#include "text/hub/post_json.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <memory>

#include "mezzo/version.h"

namespace mezzo::text {

std::string post_json(const PostTarget& target, const std::string& json, const std::function<bool()>& gives_up) {
  if (!target.url.starts_with("https://")) return "the address is not one of https";
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), &curl_easy_cleanup);
  if (!curl) return "libcurl cannot be started";
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr, &curl_slist_free_all);
  headers.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
  if (!target.token.empty()) curl_slist_append(headers.get(), ("Authorization: Bearer " + target.token).c_str());
  char error[CURL_ERROR_SIZE] = {};
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(curl.get(), option, value); };
  set(CURLOPT_URL, target.url.c_str());
  if (!target.ca_file.empty()) set(CURLOPT_CAINFO, target.ca_file.c_str());
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  set(CURLOPT_POSTFIELDS, json.data());
  set(CURLOPT_USERAGENT, "mezzo/" MEZZO_VERSION);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT, 5L);
  set(CURLOPT_ERRORBUFFER, error);
  set(CURLOPT_WRITEFUNCTION, +[](char*, size_t, size_t size, void*) { return size; });
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFODATA, &gives_up);
  set(
      CURLOPT_XFERINFOFUNCTION, +[](const std::function<bool()>* asked, curl_off_t, curl_off_t, curl_off_t,
                                    curl_off_t) { return (*asked)() ? 1 : 0; });
  if (const CURLcode code = curl_easy_perform(curl.get()); code != CURLE_OK) {
    return *error != '\0' ? error : curl_easy_strerror(code);
  }
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  return status >= 200 && status < 300 ? "" : fmt::format("status {}", status);
}

}  // namespace mezzo::text
