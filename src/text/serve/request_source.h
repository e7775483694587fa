#pragma once

#include <string>
#include <vector>

#include "text/serve/http_server.h"

namespace mezzo::text {

/// The hosts by which clients may call a server. A page of another site cannot read answers by a separate name that
/// it has pointed at this machine (DNS rebinding).
///
/// Always allowed are IP addresses, localhost, names that end in .localhost, and the host that the
/// server listens on, as in Vite and webpack-dev-server. The name of this machine is also allowed,
/// as in Ollama.
class AllowedHosts {
 public:
  /// @param listens_on  the server's own host.
  /// @param more  further names; "*" allows all.
  AllowedHosts(const std::string& listens_on, const std::vector<std::string>& more);

  /// Whether a client may call the server by this Host header. The port does not matter. An empty Host is
  /// allowed; no browser sends one.
  bool allow(const std::string& host) const;

 private:
  std::vector<std::string> names_;
};

/// Whether a browser sends this for a page of another origin. By Sec-Fetch-Site, or by Origin and Host if that header
/// is missing.
/// @see net/http.CrossOriginProtection of Go
bool is_from_another_site(const HttpRequest& request);

}  // namespace mezzo::text
