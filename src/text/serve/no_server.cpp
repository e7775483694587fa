#include <c10/util/Exception.h>

#include "mezzo/text/serve/server.h"

/// Replaces the server if libmicrohttpd was not found when mezzo was built.
namespace mezzo::text {

struct Server::State {};

Server::Server(const std::vector<ServedModel>& /*models*/, const ServerOptions& /*options*/) {
  TORCH_CHECK(false, "this build of mezzo has no server: install libmicrohttpd-dev and build it anew");
}
Server::~Server() = default;
uint16_t Server::port() const { return 0; }
unsigned Server::most_connections() const { return 0; }
void Server::stop() {}

}  // namespace mezzo::text
