#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

namespace mezzo::text {

/// The server does not answer, or has too much to do; a cached model may do. The message says what to do.
struct HubUnreachable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// HTTP requests to a hub. Requests that are answered with status 429 or 5xx are tried up to five times, after the time
/// that the server asks to wait. Not thread-safe.
class HubClient {
 public:
  struct Answer {
    int64_t status = 0;
    std::map<std::string, std::string> headers = {};  ///< of the last response, names in lower case
    std::string body = {};

    /// Empty if it is missing.
    std::string header(const std::string& name) const {
      const auto found = headers.find(name);
      return found == headers.end() ? "" : found->second;
    }
  };

  /// @param token  sent to `endpoint` alone; empty for none.
  HubClient(std::string endpoint, std::string token, std::function<bool()> stop_requested);
  ~HubClient();
  HubClient(const HubClient&) = delete;
  HubClient& operator=(const HubClient&) = delete;

  /// @param path  below the endpoint.
  /// @param is_head  asks for headers alone, and follows redirects within the endpoint alone.
  /// @throws HubUnreachable, DownloadStopped
  Answer ask(const std::string& path, bool is_head = false);
  /// Appends to `file` the missing rest of the file at `path`. Also tries again if the connection breaks.
  /// @param progress  gets the bytes that are in the file.
  /// @return the status; 200 once the file is whole, as far as the server says.
  /// @throws c10::Error  naming `file` if it cannot be written; HubUnreachable, DownloadStopped
  int64_t download(const std::string& path,
                   const std::filesystem::path& file,
                   const std::function<void(int64_t bytes)>& progress);

 private:
  struct Connection;
  std::string endpoint_;
  std::unique_ptr<Connection> connection_;
};

/// Whether `file` has the hash that `etag` is: SHA-256 in 64 digits, or SHA-1 in 40, of the content or of Git's blob.
/// True for other etags, which are not hashes.
bool has_hash_of_etag(const std::filesystem::path& file, const std::string& etag);

}  // namespace mezzo::text
