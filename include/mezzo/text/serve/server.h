#pragma once

#include "mezzo/cpp20.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mezzo/text/inference/classifier.h"

namespace mezzo::text {

/// A folder with a trained classifier, and its name in requests.
struct ServedModel {
  std::string name;              ///< as the field `model` of a request
  std::filesystem::path folder;  ///< from `mezzo train`
};

/// Options of a Server.
struct ServerOptions {
  std::string host = "127.0.0.1";  ///< an address or a name of this machine
  uint16_t port = 8080;            ///< 0: any free port
  std::string token = {};          ///< bearer token of requests; empty: none is required
  /// Further names of this server in requests (Host); "*": any. IP addresses, localhost, this
  /// machine's name and `host` are always allowed.
  std::vector<std::string> allowed_hosts = {};
  int64_t max_body_bytes = int64_t{4} << 20;         ///< of a request
  int64_t max_texts = 1024;                          ///< of a request
  int64_t max_queue = 4096;                          ///< texts that may wait
  std::chrono::seconds timeout{30};                  ///< for a request
  ClassifierOptions classifier = {};                 ///< of all models; `is_mapped` is ignored: weights are copied
  std::function<void(const std::string&)> log = {};  ///< takes one line; called from any thread
};

/// Answers HTTP requests with predictions of models. See docs/serving.md for requests and answers.
///
/// Batches queued requests, and runs the batches on a separate thread.
class Server {
 public:
  /// Loads the models, runs each once, and listens.
  /// @param models  at least one, with different names
  /// @throws c10::ValueError  for a folder without a trained classifier, and for a name that is not
  ///     UTF-8
  /// @throws c10::Error  if the port cannot be used
  Server(const std::vector<ServedModel>& models, const ServerOptions& options);
  /// Stops the server.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port of the server.
  uint16_t port() const;
  /// The maximum number of connections at a time, from the limit of open files.
  unsigned most_connections() const;

  /// Rejects new requests, answers the accepted requests, and returns. Thread-safe, and safe to
  /// call twice.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mezzo::text
