#include <c10/util/Exception.h>

#include <utility>

#include "text/hub/hub_client.h"
#include "text/hub/post_json.h"

/// For builds without libcurl and OpenSSL: cached models can be used.
namespace mezzo::text {

struct HubClient::Connection {};

HubClient::HubClient(std::string endpoint, std::string, std::function<bool()>) : endpoint_(std::move(endpoint)) {}
HubClient::~HubClient() = default;
HubClient::Answer HubClient::ask(const std::string&, bool) {
  throw HubUnreachable("mezzo was built without libcurl or OpenSSL");
}
int64_t HubClient::download(const std::string&, const std::filesystem::path&, const std::function<void(int64_t)>&) {
  return ask("", false).status;
}
std::string post_json(const PostTarget&, const std::string&, const std::function<bool()>&) {
  return "mezzo was built without libcurl or OpenSSL";
}
bool has_hash_of_etag(const std::filesystem::path&, const std::string&) { return false; }

}  // namespace mezzo::text
