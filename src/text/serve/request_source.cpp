#include "text/serve/request_source.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

bool is_ip_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

/// "example.org" of "Example.org.:8080", "::1" of "[::1]:8080". Empty if anything but a port follows the name.
std::string without_port(std::string_view host) {
  const bool is_in_brackets = host.starts_with('[');
  const size_t end = is_in_brackets ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == host.npos) return "";
  std::string_view name = host.substr(0, end), rest = host.substr(end);
  if (is_in_brackets) {
    name.remove_prefix(1);
    rest.remove_prefix(1);
  } else if (name.ends_with('.')) {
    name.remove_suffix(1);
  }
  const bool is_port = rest.starts_with(':') && rest.find_first_not_of("0123456789", 1) == rest.npos;
  return rest.empty() || is_port ? ascii_lower(name) : "";
}

std::string name_of_this_machine() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return ascii_lower(name.data());
}

}  // namespace

AllowedHosts::AllowedHosts(const std::string& listens_on, const std::vector<std::string>& more)
    : names_{ascii_lower(listens_on), "localhost", name_of_this_machine()} {
  for (const std::string& host : more) {
    names_.push_back(without_port(host));
  }
}

bool AllowedHosts::allow(const std::string& host) const {
  const std::string name = without_port(host);
  const auto has = [&](const std::string& one) { return std::ranges::find(names_, one) != names_.end(); };
  return host.empty() || has("*") ||
         (!name.empty() && (is_ip_address(name) || name.ends_with(".localhost") || has(name)));
}

bool is_from_another_site(const HttpRequest& request) {
  if (!request.fetch_site.empty()) {
    return request.fetch_site != "same-origin" && request.fetch_site != "none";
  }
  const size_t scheme_end = request.origin.find("://");
  return !request.origin.empty() &&  // "null" for a page without an origin
         (scheme_end == std::string::npos ||
          ascii_lower(request.origin.substr(scheme_end + 3)) != ascii_lower(request.host));
}

}  // namespace mezzo::text
