#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mezzo::text {

struct HttpRequest {
  std::string method;            ///< "POST"
  std::string path;              ///< without the query: "/predict"
  std::string content_type;      ///< as the header has it; empty without one
  std::string content_encoding;  ///< likewise
  std::string authorization;     ///< likewise
  std::string host;              ///< likewise
  std::string origin;            ///< likewise
  std::string fetch_site;        ///< of Sec-Fetch-Site: the origin of the requesting page
  std::string body;              ///< empty as long as it has not come
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};  ///< further ones
};

/// HTTP/1.1 with limits, by libmicrohttpd: a connection that waits for its answer holds no thread.
class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  ///< an address or a name of this machine
    uint16_t port = 0;               ///< 0: one that is free
    size_t max_body_bytes = size_t{4} << 20;
    unsigned max_connections = 1000;
    size_t max_answer_bytes = size_t{256} << 20;  ///< of all answers together that clients have not taken yet
    std::chrono::seconds idle{10};                ///< after which a silent connection is closed
    std::chrono::seconds patience{30};            ///< for a body to come whole
    /// Called if connections are refused because all are taken, once a minute at most.
    std::function<void(unsigned connections)> on_full = [](unsigned) {};
  };

  /// Makes the answer, on a thread of the server.
  using MakeResponse = std::function<HttpResponse()>;
  /// To be called once, from any thread, at once or later.
  using Respond = std::function<void(MakeResponse)>;
  /// Called on a thread of the server with a request that has come whole.
  using Handler = std::function<void(HttpRequest, Respond)>;
  /// Asked once the headers have come, before the body is kept: an answer that refuses it, or nothing.
  using Check = std::function<std::optional<HttpResponse>(const HttpRequest& request)>;
  /// Makes the answer to requests that this server itself refuses. Statuses are 400 and 501 (a body whose end is not
  /// told as HTTP defines it), 413, 500 and 503.
  using DescribeError = std::function<HttpResponse(const std::string& path, int status)>;

  /// Listens from now on.
  /// @throws c10::Error  naming host and port, where nothing can listen there.
  HttpServer(const Options& options, Check check, Handler handler, DescribeError describe_error);
  /// Stops.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  unsigned most_connections() const;

  /// Takes no more connections, waits for the answers that are due, and then at most `patience` for clients that are
  /// slow to take them. A request that comes meanwhile is refused with 503. To be called by one thread.
  void stop(std::chrono::milliseconds patience);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mezzo::text
