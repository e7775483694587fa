#include "text/serve/http_server.h"

#include <c10/util/Exception.h>
#include <malloc.h>
#include <microhttpd.h>
#include <netdb.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <system_error>

namespace mezzo::text {
namespace {

using Clock = std::chrono::steady_clock;

/// One request and its answer.
struct Exchange {
  HttpRequest request;
  Clock::time_point begin = Clock::now();
  std::optional<HttpResponse> refusal = {};  // whose body is read and dropped, so that the client hears why
  size_t kept_bytes = 0;                     // of the body
  size_t answer_bytes = 0;
  bool is_handled = false;
  HttpServer::MakeResponse make_response = {};  // once there is one
};

std::string header_of(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? "" : value;
}

/// The status that refuses what two programs on a request's way could take for two requests; 0 for none of that.
int status_of_framing(MHD_Connection* connection) {
  struct Seen {
    int lengths = 0, encodings = 0, hosts = 0;
    bool has_odd_name = false;
  } seen;
  const auto look = [](void* context, MHD_ValueKind, const char* name, const char*) {
    auto& found = *static_cast<Seen*>(context);
    found.lengths += ::strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 ? 1 : 0;
    found.encodings += ::strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0 ? 1 : 0;
    found.hosts += ::strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0 ? 1 : 0;
    found.has_odd_name = found.has_odd_name || std::strpbrk(name, " \t") != nullptr;
    return MHD_YES;
  };
  MHD_get_connection_values(connection, MHD_HEADER_KIND, look, &seen);
  if (seen.lengths + seen.encodings > 1 || seen.hosts > 1 || seen.has_odd_name) return MHD_HTTP_BAD_REQUEST;
  const bool is_chunked =
      ::strcasecmp(header_of(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING).c_str(), "chunked") == 0;
  return seen.encodings == 1 && !is_chunked ? MHD_HTTP_NOT_IMPLEMENTED : 0;
}

/// A path with %00 in it would end there, and be another.
size_t unescape(void* /*unused*/, MHD_Connection* /*connection*/, char* text) {
  const size_t size = MHD_http_unescape(text);
  std::replace(text, text + size, '\0', '\1');
  return size;
}

/// The first address of a host, with a port.
struct Address {
  sockaddr_storage storage = {};
  bool is_ipv6 = false;

  Address(const std::string& host, uint16_t port) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    TORCH_CHECK_VALUE(failed == 0, "--host ", host, ": ", ::gai_strerror(failed),
                      "; pass an address of this machine, as 127.0.0.1 or 0.0.0.0");
    std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
    is_ipv6 = found->ai_family == AF_INET6;
    ::freeaddrinfo(found);
  }
};

/// Connections that leave some of the files that this process may open to others.
unsigned connections_within_limits(unsigned wanted) {
  constexpr rlim_t kOthers = 64;
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return wanted;
  const rlim_t left = files.rlim_cur > 2 * kOthers ? files.rlim_cur - kOthers : files.rlim_cur / 2;
  return static_cast<unsigned>(std::clamp<rlim_t>(left, 2, wanted));
}

}  // namespace

struct HttpServer::State {
  Options options;
  Check check;
  Handler handler;
  DescribeError describe_error;
  MHD_Daemon* daemon = nullptr;
  uint16_t port = 0;

  std::mutex mutex = {};
  std::condition_variable changed = {};
  bool is_stopping = false;   // guarded by mutex, as all below
  int64_t num_suspended = 0;  // requests whose answers are due
  int64_t num_open = 0;       // requests whose answers have not been taken whole
  size_t kept_bytes = 0;      // of the bodies of all requests
  size_t answer_bytes = 0;    // of the answers that have not been taken whole
  bool were_large = false;    // since memory was given back last
  int64_t num_connections = 0;
  std::optional<Clock::time_point> told_full = {};
  unsigned most_connections = 0;

  MHD_Result begin(MHD_Connection* connection, const char* url, const char* method, void** context);
  bool keep(Exchange& exchange, const char* data, size_t size);
  MHD_Result handle(MHD_Connection* connection, Exchange& exchange);
  MHD_Result answer(MHD_Connection* connection, const HttpResponse& response);
  MHD_Result refuse(MHD_Connection* connection, HttpResponse response) {
    response.headers.emplace_back("Connection", "close");
    return answer(connection, response);
  }

  static MHD_Result on_request(void* self,
                               MHD_Connection* connection,
                               const char* url,
                               const char* method,
                               const char* version,
                               const char* data,
                               size_t* size,
                               void** context);
  static void on_completed(void* self, MHD_Connection* connection, void** context, MHD_RequestTerminationCode code);
  static void on_connection(void* self,
                            MHD_Connection* connection,
                            void** context,
                            MHD_ConnectionNotificationCode code);
  bool hold_answer(Exchange& exchange, size_t bytes);
};

/// The headers have come.
MHD_Result HttpServer::State::begin(MHD_Connection* connection, const char* url, const char* method, void** context) {
  constexpr unsigned long long kDroppedBytes = 16;  // refused bodies up to this many times the limit are read and
                                                    // dropped
  auto exchange = std::make_unique<Exchange>(
      Exchange{.request = {.method = method,
                           .path = url,
                           .content_type = header_of(connection, MHD_HTTP_HEADER_CONTENT_TYPE),
                           .content_encoding = header_of(connection, MHD_HTTP_HEADER_CONTENT_ENCODING),
                           .authorization = header_of(connection, MHD_HTTP_HEADER_AUTHORIZATION),
                           .host = header_of(connection, MHD_HTTP_HEADER_HOST),
                           .origin = header_of(connection, MHD_HTTP_HEADER_ORIGIN),
                           .fetch_site = header_of(connection, "Sec-Fetch-Site"),
                           .body = {}}});
  exchange->refusal = check(exchange->request);
  const int wrong_framing = status_of_framing(connection);
  if (!exchange->refusal && wrong_framing != 0) {
    exchange->refusal = describe_error(exchange->request.path, wrong_framing);
  }
  const std::string length = header_of(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
  const auto bytes = std::strtoull(length.c_str(), nullptr, 10);
  if (!exchange->refusal && bytes > options.max_body_bytes) {
    exchange->refusal = describe_error(exchange->request.path, MHD_HTTP_CONTENT_TOO_LARGE);
  }
  {
    const std::lock_guard lock(mutex);
    ++num_open;
  }
  Exchange& begun = *exchange;
  *context = exchange.release();  // until on_completed()
  const bool waits_to_be_asked = !header_of(connection, MHD_HTTP_HEADER_EXPECT).empty();
  if (begun.refusal && (wrong_framing != 0 || waits_to_be_asked || bytes / kDroppedBytes > options.max_body_bytes)) {
    return refuse(connection, *begun.refusal);
  }
  return MHD_YES;
}

/// A part of the body has come. Returns false if the connection is to be closed.
bool HttpServer::State::keep(Exchange& exchange, const char* data, size_t size) {
  constexpr size_t kBodies = 64;  // of the largest size, which all requests together may have
  if (Clock::now() > exchange.begin + options.patience) return false;
  if (exchange.refusal) return true;
  const std::string& path = exchange.request.path;
  if (exchange.kept_bytes + size > options.max_body_bytes) {
    exchange.refusal = describe_error(path, MHD_HTTP_CONTENT_TOO_LARGE);
    return true;
  }
  {
    const std::lock_guard lock(mutex);
    if (kept_bytes + size <= kBodies * options.max_body_bytes) {
      kept_bytes += size;
      exchange.kept_bytes += size;
      exchange.request.body.append(data, size);
      return true;
    }
  }
  exchange.refusal = describe_error(path, MHD_HTTP_SERVICE_UNAVAILABLE);
  return true;
}

/// The request has come whole, or its answer is there.
MHD_Result HttpServer::State::handle(MHD_Connection* connection, Exchange& exchange) {
  if (exchange.refusal) {
    return refuse(connection, *exchange.refusal);
  }
  const std::string path = exchange.request.path;
  if (exchange.make_response) {
    HttpResponse response;
    try {
      response = std::exchange(exchange.make_response, {})();
    } catch (...) {
      response = describe_error(path, MHD_HTTP_INTERNAL_SERVER_ERROR);
    }
    if (!hold_answer(exchange, response.body.size())) {
      response = describe_error(path, MHD_HTTP_SERVICE_UNAVAILABLE);
    }
    return answer(connection, response);
  }
  if (exchange.is_handled) return MHD_YES;  // its answer is due
  {
    const std::lock_guard lock(mutex);
    if (!is_stopping) ++num_suspended;
    exchange.is_handled = !is_stopping;
  }
  if (!exchange.is_handled) {
    return refuse(connection, describe_error(path, MHD_HTTP_SERVICE_UNAVAILABLE));
  }
  const auto respond = [this, connection, &exchange](MakeResponse make_response) {
    exchange.make_response = std::move(make_response);
    MHD_resume_connection(connection);
    const std::lock_guard lock(mutex);
    --num_suspended;
    changed.notify_all();
  };
  HttpRequest request = std::move(exchange.request);
  exchange.request.path = path;
  MHD_suspend_connection(connection);  // before anybody can answer
  try {
    handler(std::move(request), respond);
  } catch (...) {
    respond([this, path] { return describe_error(path, MHD_HTTP_INTERNAL_SERVER_ERROR); });
  }
  return MHD_YES;
}

/// Whether an answer fits into the memory for answers until its client has taken it.
bool HttpServer::State::hold_answer(Exchange& exchange, size_t bytes) {
  constexpr size_t kSmall = size_t{64} << 10;  // of which all connections together have few
  const std::lock_guard lock(mutex);
  if (bytes > kSmall && answer_bytes > 0 && answer_bytes + bytes > options.max_answer_bytes) return false;
  answer_bytes += bytes;
  exchange.answer_bytes = bytes;
  were_large = were_large || answer_bytes > options.max_answer_bytes / 8;
  return true;
}

MHD_Result HttpServer::State::answer(MHD_Connection* connection, const HttpResponse& response) {
  // The library does not write to memory that it copies.
  auto* const made = MHD_create_response_from_buffer(response.body.size(), const_cast<char*>(response.body.data()),
                                                     MHD_RESPMEM_MUST_COPY);
  if (made == nullptr) return MHD_NO;
  MHD_add_response_header(made, MHD_HTTP_HEADER_CONTENT_TYPE, response.content_type.c_str());
  for (const auto& [name, value] : response.headers) {
    MHD_add_response_header(made, name.c_str(), value.c_str());
  }
  const auto queued = MHD_queue_response(connection, static_cast<unsigned>(response.status), made);
  MHD_destroy_response(made);
  return queued;
}

MHD_Result HttpServer::State::on_request(void* self,
                                         MHD_Connection* connection,
                                         const char* url,
                                         const char* method,
                                         const char* /*version*/,
                                         const char* data,
                                         size_t* size,
                                         void** context) {
  auto& state = *static_cast<State*>(self);
  try {
    if (*context == nullptr) {
      return state.begin(connection, url, method, context);
    }
    auto& exchange = *static_cast<Exchange*>(*context);
    if (*size == 0) {
      return state.handle(connection, exchange);
    }
    const bool is_kept = state.keep(exchange, data, *size);
    *size = 0;
    return is_kept ? MHD_YES : MHD_NO;
  } catch (...) {
    return MHD_NO;  // without memory for the request: its connection is closed
  }
}

void HttpServer::State::on_completed(void* self,
                                     MHD_Connection* /*connection*/,
                                     void** context,
                                     MHD_RequestTerminationCode /*code*/) {
  if (*context == nullptr) return;
  const std::unique_ptr<Exchange> exchange(static_cast<Exchange*>(*context));
  *context = nullptr;
  auto& state = *static_cast<State*>(self);
  bool were_large = false;
  {
    const std::lock_guard lock(state.mutex);
    --state.num_open;
    state.kept_bytes -= exchange->kept_bytes;
    state.answer_bytes -= exchange->answer_bytes;
    if (state.answer_bytes == 0) were_large = std::exchange(state.were_large, false);
    state.changed.notify_all();
  }
  if (were_large) ::malloc_trim(0);
}

void HttpServer::State::on_connection(void* self,
                                      MHD_Connection* /*connection*/,
                                      void** /*context*/,
                                      MHD_ConnectionNotificationCode code) {
  constexpr std::chrono::minutes kQuiet(1);
  auto& state = *static_cast<State*>(self);
  {
    const std::lock_guard lock(state.mutex);
    state.num_connections += code == MHD_CONNECTION_NOTIFY_STARTED ? 1 : -1;
    const auto now = Clock::now();
    if (state.num_connections < state.most_connections || (state.told_full && now < *state.told_full + kQuiet)) return;
    state.told_full = now;
  }
  try {
    state.options.on_full(state.most_connections);
  } catch (...) {  // it is only said
  }
}

HttpServer::HttpServer(const Options& options, Check check, Handler handler, DescribeError describe_error)
    : state_(new State{options, std::move(check), std::move(handler), std::move(describe_error)}) {
  constexpr unsigned kThreads = 2;              // that read requests, tokenize and write answers
  constexpr size_t kMemory = size_t{32} << 10;  // of a connection, which bounds its headers
  const Address address(options.host, options.port);
  // By poll(): with epoll, workers that wake while MHD_quiesce_daemon() runs take the listening socket out twice, over
  // which the library ends the process.
  const unsigned ipv6 = address.is_ipv6 ? static_cast<unsigned>(MHD_USE_IPv6) : 0U;
  // The library gives each of its threads an even share.
  state_->most_connections = connections_within_limits(options.max_connections) / kThreads * kThreads;
  errno = 0;
  state_->daemon = MHD_start_daemon(ipv6 | MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, options.port,
                                    nullptr, nullptr, &State::on_request, state_.get(), MHD_OPTION_SOCK_ADDR,
                                    &address.storage, MHD_OPTION_NOTIFY_COMPLETED, &State::on_completed, state_.get(),
                                    MHD_OPTION_CONNECTION_LIMIT, state_->most_connections, MHD_OPTION_NOTIFY_CONNECTION,
                                    &State::on_connection, state_.get(), MHD_OPTION_STRICT_FOR_CLIENT, 1,
                                    MHD_OPTION_UNESCAPE_CALLBACK, &unescape, nullptr, MHD_OPTION_CONNECTION_TIMEOUT,
                                    static_cast<unsigned>(options.idle.count()), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                    kMemory, MHD_OPTION_THREAD_POOL_SIZE, kThreads, MHD_OPTION_END);
  const int error = errno;
  TORCH_CHECK(state_->daemon != nullptr, "cannot listen on ", options.host, ":", options.port, ": ",
              std::generic_category().message(error),
              error == EADDRNOTAVAIL ? "; pass an address of this machine as --host, such as 127.0.0.1 or 0.0.0.0"
              : error == EADDRINUSE  ? "; pass another --port"
              : error == EACCES && options.port < 1024
                  ? "; pass a --port from 1024 on, or run as a user that may use this one"
                  : "");
  state_->port = MHD_get_daemon_info(state_->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
}

HttpServer::~HttpServer() { stop(std::chrono::seconds(0)); }

uint16_t HttpServer::port() const { return state_->port; }

unsigned HttpServer::most_connections() const { return state_->most_connections; }

void HttpServer::stop(std::chrono::milliseconds patience) {
  if (state_->daemon == nullptr) return;
  const auto listening = MHD_quiesce_daemon(state_->daemon);
  if (listening != MHD_INVALID_SOCKET) {
    ::shutdown(listening, SHUT_RDWR);  // new connections are refused
  }
  {
    std::unique_lock lock(state_->mutex);
    state_->is_stopping = true;
    state_->changed.wait(lock, [&] { return state_->num_suspended == 0; });
    state_->changed.wait_for(lock, patience, [&] { return state_->num_open == 0; });
  }
  MHD_stop_daemon(state_->daemon);
  if (listening != MHD_INVALID_SOCKET) {
    ::close(listening);  // not before: a worker may still look at it
  }
  state_->daemon = nullptr;
}

}  // namespace mezzo::text
