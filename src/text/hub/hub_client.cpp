#include "text/hub/hub_client.h"

#define OPENSSL_SUPPRESS_DEPRECATED  // of the newer functions a static library links all of OpenSSL
#include <c10/util/Exception.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "mezzo/text/hub/hub.h"
#include "mezzo/version.h"
#include "system/unique_fd.h"
#include "text/io/durable_files.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

constexpr int kMostRedirects = 10;
constexpr int kMostTries = 5;        // of a request; a download starts anew whenever bytes come
constexpr double kLongestWait = 10;  // seconds before the next try
constexpr const char* kStopped = "the download was stopped; the same command resumes it";
constexpr size_t kMostText = size_t{32} << 20;  // bytes of an answer that is kept in memory

int64_t status_of(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

bool is_redirect(int64_t status) { return status >= 300 && status < 400; }

/// The server has too much to do, or is restarted.
bool is_temporary(int64_t status) { return status == 429 || status >= 500; }

/// Receives the content of an answer; false ends the transfer.
using Sink = std::function<bool(int64_t status, std::string_view piece)>;

}  // namespace

struct HubClient::Connection {
  Connection(const std::string& endpoint, const std::string& token, std::function<bool()> stop)
      : within(endpoint + "/"), stop_requested(std::move(stop)) {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    curl.reset(curl_easy_init());
    TORCH_CHECK(curl, "libcurl cannot be started");
    if (!token.empty()) headers.reset(curl_slist_append(nullptr, ("Authorization: Bearer " + token).c_str()));
  }

  /// @param from  the first byte to send.
  CURLcode request(std::string url, bool is_head, int64_t from, Answer& answer, const Sink& to) {
    for (int redirects = 0;; ++redirects) {
      CURL* const handle = curl.get();
      answer.headers.clear();
      curl_easy_reset(handle);  // keeps the connection
      const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
      const bool is_within = url.starts_with(within);
      set(CURLOPT_URL, url.c_str());
      set(CURLOPT_NOBODY, is_head ? 1L : 0L);
      if (from > 0) set(CURLOPT_RANGE, fmt::format("{}-", from).c_str());  // a server may send all nevertheless
      set(CURLOPT_USERAGENT, "mezzo/" MEZZO_VERSION);
      set(CURLOPT_HTTPHEADER, is_within ? headers.get() : nullptr);  // others must not see the token
      set(CURLOPT_NOSIGNAL, 1L);
      set(CURLOPT_CONNECTTIMEOUT, 10L);
      set(CURLOPT_LOW_SPEED_LIMIT, 1L);  // bytes a second
      set(CURLOPT_LOW_SPEED_TIME, 30L);
      set(CURLOPT_ERRORBUFFER, error);
      set(CURLOPT_NOPROGRESS, 0L);
      set(CURLOPT_XFERINFODATA, this);
      set(
          CURLOPT_XFERINFOFUNCTION, +[](Connection* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
            return self->stop_requested && self->stop_requested() ? 1 : 0;
          });
      set(CURLOPT_HEADERDATA, &answer);
      set(CURLOPT_HEADERFUNCTION, &Connection::take_header);
      set(CURLOPT_WRITEDATA, this);
      set(
          CURLOPT_WRITEFUNCTION, +[](char* data, size_t, size_t size, Connection* self) -> size_t {
            const int64_t status = status_of(self->curl.get());
            return is_redirect(status) || (*self->sink)(status, {data, size}) ? size : 0;
          });
      for (const char* name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}) {  // as Python's clients
        if (const char* file = std::getenv(name); file != nullptr && *file != '\0') set(CURLOPT_CAINFO, file);
      }
      sink = &to;
      *error = '\0';
      const CURLcode code = curl_easy_perform(handle);
      if (code == CURLE_ABORTED_BY_CALLBACK) throw DownloadStopped(kStopped);
      const char* next = nullptr;
      answer.status = status_of(handle);
      curl_easy_getinfo(handle, CURLINFO_REDIRECT_URL, &next);
      if (code != CURLE_OK || !is_redirect(answer.status) || next == nullptr) return code;
      const std::string_view target = next;
      if (is_head && !target.starts_with(within)) return code;
      const bool is_safe =
          target.starts_with("https://") || (target.starts_with("http://") && !within.starts_with("https"));
      if (redirects == kMostRedirects || !is_safe) return CURLE_TOO_MANY_REDIRECTS;
      url = next;
    }
  }

  static size_t take_header(char* data, size_t, size_t size, Answer* answer) {
    const std::string_view line(data, size);
    if (const size_t colon = line.find(':'); colon != line.npos) {
      std::string value(line.substr(colon + 1));
      value.erase(0, value.find_first_not_of(" \t"));
      value.erase(value.find_last_not_of(" \t\r\n") + 1);
      answer->headers[ascii_lower(line.substr(0, colon))] = std::move(value);
    }
    return size;
  }

  HubUnreachable unreachable(CURLcode code) const {
    return HubUnreachable(
        fmt::format("the Hugging Face Hub cannot be reached: {}. Check the network, HTTPS_PROXY and HF_ENDPOINT",
                    *error != '\0' ? error : curl_easy_strerror(code)));
  }

  /// Waits before the next try, for as long as the server asks to. Returns false if there should be none.
  bool wait(int tries, const Answer& answer) const {
    const double asked = std::strtod(answer.header("retry-after").c_str(), nullptr);
    const double seconds = std::max(0.1 * (1 << tries), asked);
    if (tries == kMostTries || !(seconds <= kLongestWait)) return false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      if (stop_requested && stop_requested()) throw DownloadStopped(kStopped);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  struct Free {
    void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };
  std::string within;  // what begins the addresses that may see the token
  std::function<bool()> stop_requested;
  std::unique_ptr<CURL, Free> curl;
  std::unique_ptr<curl_slist, Free> headers;
  const Sink* sink = nullptr;
  char error[CURL_ERROR_SIZE] = {};
};

HubClient::HubClient(std::string endpoint, std::string token, std::function<bool()> stop_requested)
    : endpoint_(std::move(endpoint)),
      connection_(std::make_unique<Connection>(endpoint_, token, std::move(stop_requested))) {}
HubClient::~HubClient() = default;

HubClient::Answer HubClient::ask(const std::string& path, bool is_head) {
  for (int tries = 1;; ++tries) {
    Answer answer;
    const CURLcode code =
        connection_->request(endpoint_ + path, is_head, 0, answer, [&](int64_t, std::string_view piece) {
          answer.body += piece;
          return answer.body.size() <= kMostText;
        });
    if (code != CURLE_OK) throw connection_->unreachable(code);
    if (!is_temporary(answer.status) || !connection_->wait(tries, answer)) return answer;
  }
}

int64_t HubClient::download(const std::string& path,
                            const std::filesystem::path& file,
                            const std::function<void(int64_t bytes)>& progress) {
  const UniqueFd descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  const auto fail = [&](int error) {
    TORCH_CHECK(false, file.string(), ": cannot be written: ", std::strerror(error),
                error == ENOSPC ? ". Free some space; the same command resumes the download" : "");
  };
  if (descriptor.get() < 0) fail(errno);
  int64_t bytes = ::lseek(descriptor.get(), 0, SEEK_END);
  for (int tries = 0;;) {
    const int64_t before = bytes;
    int write_error = 0;
    bool has_begun = false;
    Answer answer;
    const CURLcode code = connection_->request(
        endpoint_ + path, /*is_head=*/false, bytes, answer, [&](int64_t status, std::string_view piece) {
          if (status != 200 && status != 206) return true;                      // an error page
          if (!std::exchange(has_begun, true) && status == 200 && bytes > 0) {  // the server sends all of it again
            bytes = 0;
            if (::ftruncate(descriptor.get(), 0) != 0) write_error = errno;
          }
          while (!piece.empty() && write_error == 0) {
            const ssize_t count = ::pwrite(descriptor.get(), piece.data(), piece.size(), bytes);
            if (count < 0 && errno != EINTR) write_error = errno;
            if (count <= 0) continue;
            bytes += count;
            piece.remove_prefix(static_cast<size_t>(count));
          }
          progress(bytes);
          return write_error == 0;
        });
    if (write_error != 0) fail(write_error);
    constexpr int64_t kNothingLeft = 416;  // the file was whole before
    tries = bytes > before ? 0 : tries + 1;
    const bool has_failed = code != CURLE_OK && answer.status != kNothingLeft;
    if ((has_failed || is_temporary(answer.status)) && connection_->wait(tries, answer)) continue;
    if (has_failed) throw connection_->unreachable(code);
    const bool is_whole = answer.status == 200 || answer.status == 206 || answer.status == kNothingLeft;
    if (const int error = is_whole ? flush_to_disk(descriptor.get()) : 0; error != 0) fail(error);
    return is_whole ? 200 : answer.status;
  }
}

bool has_hash_of_etag(const std::filesystem::path& file, const std::string& etag) {
  const bool is_hex = etag.find_first_not_of("0123456789abcdef") == etag.npos;
  const auto digest = [&](auto context, auto init, auto update, auto finish, const std::string& prefix) {
    init(&context);
    update(&context, prefix.data(), prefix.size());
    for_each_piece(file, [&](const void* data, size_t size) { update(&context, data, size); });
    unsigned char bytes[SHA256_DIGEST_LENGTH];
    finish(bytes, &context);
    std::string hex;
    for (size_t i = 0; i < etag.size() / 2; ++i) hex += fmt::format("{:02x}", bytes[i]);
    return hex;
  };
  const auto sha1 = [&](const std::string& prefix) {
    return digest(SHA_CTX{}, SHA1_Init, SHA1_Update, SHA1_Final, prefix);
  };
  if (is_hex && etag.size() == 64) return digest(SHA256_CTX{}, SHA256_Init, SHA256_Update, SHA256_Final, "") == etag;
  if (!is_hex || etag.size() != 40) return true;
  const std::string blob = fmt::format("blob {}", std::filesystem::file_size(file)) + std::string(1, '\0');
  return sha1("") == etag || sha1(blob) == etag;
}

}  // namespace mezzo::text
