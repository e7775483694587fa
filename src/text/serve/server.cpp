#include "mezzo/text/serve/server.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "memory/out_of_memory.h"
#include "mezzo/text/inference/int8_check.h"
#include "mezzo/text/inference/prediction_json.h"
#include "mezzo/text/io/error_message.h"
#include "text/io/printable.h"
#include "text/io/utf8.h"
#include "text/serve/batch_queue.h"
#include "text/serve/http_server.h"
#include "text/serve/predict_request.h"
#include "text/serve/request_source.h"
#include "text/serve/server_metrics.h"
#include "text/serve/try_page.h"

namespace mezzo::text {
namespace {

using AnswerJson = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Tokens of one text in windows: the model reads all of them at once.
constexpr int64_t kMostTokensOfText = 32768;
/// Words of one text, of which all stand in the answer.
constexpr int64_t kMostWordsOfText = 32768;

const char* const kNoMemory = "there is not enough memory for it now";
const char* const kFailedInside = "internal error; see the server's log";
const char* const kFull = "too many texts are waiting; try again later";

/// A request that is answered with an error.
struct RequestError : std::runtime_error {
  RequestError(int code, const std::string& why) : std::runtime_error(why), status(code) {}
  int status;
};

/// @param why  cut off, since it may repeat a long text of the client's.
HttpResponse error_response(int status, std::string why) {
  constexpr size_t kMostColumns = 1000;
  if (const auto begin = truncate_to_width(why, kMostColumns); begin.size() < why.size()) {
    why = std::string(begin) + "…";
  }
  HttpResponse response{
      .status = status,
      .body = AnswerJson{{"error", why}}.dump(-1, ' ', false, AnswerJson::error_handler_t::replace) + "\n"};
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse json_response(const AnswerJson& json) {
  return {.body = json.dump(-1, ' ', false, AnswerJson::error_handler_t::replace) + "\n"};
}

/// In a time that does not depend on the position of a difference.
bool are_equal(std::string_view given, std::string_view token) {
  unsigned different = given.size() != token.size();
  for (size_t i = 0; i < given.size(); ++i) {
    different |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(token[i % token.size()]);
  }
  return different == 0;
}

/// "application/json", also with a charset that is UTF-8.
bool is_json(const std::string& content_type) {
  std::string type = ascii_lower(content_type);
  std::erase_if(type, [](char c) { return c == ' ' || c == '"' || c == '\t'; });
  return type == "application/json" || type == "application/json;charset=utf-8";
}

struct Route {
  std::string_view path;
  bool is_post = false;
  bool is_open = false;  // without the token
};

constexpr std::array<Route, 7> kRoutes = {{
    {.path = "/predict", .is_post = true},
    {.path = "/reload", .is_post = true},
    {.path = "/models"},
    {.path = "/metrics"},
    {.path = "/", .is_open = true},
    {.path = "/page.js", .is_open = true},
    {.path = "/healthz", .is_open = true},
}};

/// Null for a path that the server does not have.
const Route* find_route(std::string_view path) {
  const auto* const found = std::ranges::find(kRoutes, path, &Route::path);
  return found == kRoutes.end() ? nullptr : found;
}

bool bears_token(const HttpRequest& request, const std::string& token) {
  constexpr std::string_view kScheme = "bearer ";
  return ascii_lower(request.authorization.substr(0, kScheme.size())) == kScheme &&
         are_equal(std::string_view(request.authorization).substr(kScheme.size()), token);
}

/// Allows only valid requests: returns 401, 403, 404, 405 or 415, or nothing.
std::optional<HttpResponse> check_request(const HttpRequest& request,
                                          const AllowedHosts& hosts,
                                          const std::string& token) {
  if (!hosts.allow(request.host)) {
    return error_response(403, fmt::format("the Host header is '{}', which is not a name of this server; to allow it, "
                                           "start mezzo serve with --allowed-host NAME",
                                           request.host));
  }
  const Route* route = find_route(request.path);
  if (!token.empty() && (route == nullptr || !route->is_open) && !bears_token(request, token)) {
    return error_response(401, "send the server's token in the header Authorization: Bearer TOKEN");
  }
  if (route == nullptr) {
    return error_response(404, "unknown path; POST texts to /predict");
  }
  if (request.method != (route->is_post ? "POST" : "GET") && (route->is_post || request.method != "HEAD")) {
    auto response = error_response(405, route->is_post ? "only POST is allowed" : "only GET is allowed");
    response.headers.emplace_back("Allow", route->is_post ? "POST" : "GET, HEAD");
    return response;
  }
  if (route->is_post && is_from_another_site(request)) {
    return error_response(403, "requests from pages of other sites are refused");
  }
  if (route->is_post && !is_json(request.content_type)) {
    return error_response(415, fmt::format("the Content-Type is {}, expected application/json, in UTF-8",
                                           request.content_type.empty() ? "missing" : request.content_type));
  }
  return std::nullopt;
}

/// What went wrong when a batch ran: none of it is the client's fault.
[[noreturn]] void throw_as_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::ValueError& wrong) {
    throw std::runtime_error(wrong.what_without_backtrace());
  }
}

class RunningModel : public BatchRunner {
 public:
  RunningModel(const std::filesystem::path& folder, const ClassifierOptions& options) : classifier_(folder, options) {
    // Finds damaged files now, and does first-use work before the first request.
    const std::string text = "a";
    const std::vector<std::string> words = {text};
    TextSpans rows{.texts = {text}};
    if (classifier_.reads_words()) rows.words = {&words, 1};
    classifier_.check_finite(classifier_.outputs(classifier_.tokenize(rows)));
    classifier_.record_single_texts();
  }

  at::Tensor run(const TokenizedTexts& texts) override { return classifier_.outputs(texts); }
  int64_t tokens_of_batch() const override { return text::tokens_of_batch(classifier_.precision()); }
  const Classifier& classifier() const { return classifier_; }

 private:
  Classifier classifier_;
};

void check_options(const PredictionOptions& options, std::string_view problem_type) {
  const bool has_scores = problem_type != "regression" && problem_type != "token_classification";
  TORCH_CHECK_VALUE(has_scores || options == PredictionOptions(),
                    "top_k and min_score are for labels of texts, but the task of the model is ", problem_type,
                    "; leave them out");
}

/// Which may never be written to: nobody could wait for the end of that.
void check_no_pipes(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    TORCH_CHECK_VALUE(!entry.is_other(), entry.path().string(), ": is neither a file nor a folder");
  }
}

/// A request for predictions, until it is answered.
struct Asked {
  PredictRequest request;
  std::vector<std::vector<std::string>> words = {};  // of the texts, if the model reads words
  std::shared_ptr<RunningModel> model = {};
  std::string model_name = {};

  TextSpans rows() const { return {.texts = request.texts, .text_pairs = request.text_pairs, .words = words}; }
};

/// On this thread alone, for any number of texts: the other threads are the model's.
TokenizedTexts tokenize_here(const Classifier& classifier, const TextSpans& rows) {
  constexpr size_t kTexts = 64;  // that LibTorch's threads do not share
  TokenizedTexts tokenized;
  for (size_t begin = 0; begin < rows.texts.size(); begin += kTexts) {
    const size_t count = std::min(kTexts, rows.texts.size() - begin);
    append(tokenized, classifier.tokenize(rows.subspan(begin, count), static_cast<int64_t>(begin)));
  }
  return tokenized;
}

void check_lengths(const TokenizedTexts& texts) {
  for (size_t i = 0; i < texts.ids.size(); ++i) {
    if (const int64_t tokens = std::ssize(texts.ids[i]); tokens > kMostTokensOfText) {
      throw RequestError(
          413, fmt::format("text {} has {} tokens in all its windows, and {} are read at most; send it in parts", i + 1,
                           tokens, kMostTokensOfText));
    }
  }
}

}  // namespace

struct Server::State {
  struct Model {
    ServedModel about;
    std::shared_ptr<RunningModel> running;  // guarded by mutex
  };

  ServerOptions options;
  AllowedHosts hosts{options.host, options.allowed_hosts};
  std::vector<Model> models = {};
  ServerMetrics metrics = {};
  mutable std::mutex mutex = {};
  std::atomic<bool> is_reloading = false, is_stopping = false;
  std::thread reloading = {};
  std::once_flag stop_once = {};
  std::optional<BatchQueue> queue = {};
  std::optional<HttpServer> http = {};  // the last member: its threads use the others

  /// Counts all paths that the server does not have as one: clients may name any number.
  void count(std::string_view path, int status, double seconds) {
    metrics.count_request(find_route(path) != nullptr ? std::string(path) : "other", status, seconds);
  }

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  std::shared_ptr<RunningModel> load(const std::filesystem::path& folder) const {
    const auto warning = options.classifier.precision == "int8" ? int8_warning(folder) : "";
    if (!warning.empty()) log(warning);
    return std::make_shared<RunningModel>(folder, options.classifier);
  }

  std::shared_ptr<RunningModel> running(const Model& model) const {
    const std::lock_guard lock(mutex);
    return model.running;
  }

  const Model& find(const std::string& name) const;
  void handle(const HttpRequest& request, const HttpServer::Respond& respond);
  void route(const HttpRequest& request, const HttpServer::Respond& respond);
  void predict(const HttpRequest& request, const HttpServer::Respond& respond);
  HttpResponse describe(const Asked& asked, const BatchQueue::Result& result);
  HttpResponse describe_models() const;
  void reload(const HttpServer::Respond& respond);
  HttpResponse reload_all();
  HttpResponse describe_failure(std::exception_ptr error, std::string_view path) const;
};

/// The answer to a request that failed. Errors that the client did not cause are logged; paths of this machine stay
/// here.
HttpResponse Server::State::describe_failure(std::exception_ptr error, std::string_view path) const {
  const auto failed = [&](int status, const std::string& said, const std::string& why) {
    log(fmt::format("{}: {}", path, why));
    return error_response(status, said);
  };
  try {
    std::rethrow_exception(std::move(error));
  } catch (const RequestError& wrong) {
    return error_response(wrong.status, wrong.what());
  } catch (const DeadlineError&) {
    return error_response(
        504, fmt::format("not done within {} seconds; send fewer texts, or try again later", options.timeout.count()));
  } catch (const c10::ValueError& wrong) {
    return error_response(400, wrong.what_without_backtrace());
  } catch (const c10::Error& wrong) {
    const std::string why = wrong.what_without_backtrace();
    return is_out_of_memory(wrong) ? failed(503, kNoMemory, why) : failed(500, kFailedInside, why);
  } catch (const std::bad_alloc&) {
    return failed(503, kNoMemory, "no memory left");
  } catch (const std::exception& wrong) {
    return failed(500, kFailedInside, wrong.what());
  }
}

const Server::State::Model& Server::State::find(const std::string& name) const {
  if (name.empty() && models.size() == 1) return models.front();
  std::vector<std::string> names;
  for (const auto& model : models) names.push_back(model.about.name);
  if (name.empty()) {
    throw RequestError(400, fmt::format("there are several models; name one as \"model\": {}", fmt::join(names, ", ")));
  }
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw RequestError(404, fmt::format("there is no model '{}': {}", name, fmt::join(names, ", ")));
  }
  return models[found - names.begin()];
}

void Server::State::handle(const HttpRequest& request, const HttpServer::Respond& respond) {
  const auto begin = Clock::now();
  const std::string path = request.path;
  const auto counted = [this, begin, path, respond](HttpServer::MakeResponse make) {
    respond([this, begin, path, make = std::move(make)] {
      HttpResponse response;
      try {
        response = make();
      } catch (...) {
        response = describe_failure(std::current_exception(), path);
      }
      count(path, response.status, std::chrono::duration<double>(Clock::now() - begin).count());
      return response;
    });
  };
  try {
    route(request, counted);
  } catch (...) {
    counted([this, path, error = std::current_exception()] { return describe_failure(error, path); });
  }
}

/// @param request  one that check_request() allows.
/// @throws before it has responded, or not at all.
void Server::State::route(const HttpRequest& request, const HttpServer::Respond& respond) {
  const std::string& path = request.path;
  if (path == "/predict") return predict(request, respond);
  if (path == "/reload") return reload(respond);
  respond([this, path]() -> HttpResponse {
    if (path == "/") {
      return {.body = try_page(!options.token.empty()),
              .content_type = "text/html; charset=utf-8",
              .headers = {{"Content-Security-Policy",
                           "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
                           "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}}};
    }
    if (path == "/page.js") return {.body = kTryScript, .content_type = "text/javascript; charset=utf-8"};
    if (path == "/metrics") {
      return {.body = metrics.to_text(queue->counts()), .content_type = "text/plain; version=0.0.4; charset=utf-8"};
    }
    if (path == "/models") return describe_models();
    return json_response({{"status", "ok"}});
  });
}

void Server::State::predict(const HttpRequest& request, const HttpServer::Respond& respond) {
  const auto deadline = Clock::now() + options.timeout;
  if (!request.content_encoding.empty() && ascii_lower(request.content_encoding) != "identity") {
    throw RequestError(415,
                       fmt::format("the Content-Encoding is {}; send the body as it is", request.content_encoding));
  }
  auto asked = std::make_shared<Asked>(Asked{.request = parse_predict_request(request.body)});
  const Model& model = find(asked->request.model);
  asked->model = running(model);
  asked->model_name = model.about.name;
  const Classifier& classifier = asked->model->classifier();
  auto& texts = asked->request.texts;
  if (std::ssize(texts) > options.max_texts) {
    throw RequestError(413, fmt::format("{} texts, and at most {} are taken at once; send them in several requests",
                                        texts.size(), options.max_texts));
  }
  check_options(asked->request.options, classifier.task().problem_type());
  if (texts.empty()) {
    respond([] { return json_response(AnswerJson::array()); });
    return;
  }
  if (!queue->has_room(std::ssize(texts))) {
    throw RequestError(503, kFull);
  }
  if (classifier.reads_words()) {
    TORCH_CHECK_VALUE(asked->request.text_pairs.empty(), "the model labels words, of single texts; leave ",
                      asked->request.is_many ? "text_pairs" : "text_pair", " out");
    for (const std::string& text : texts) {
      auto words = classifier.tokenizer().split_words(text);
      if (std::ssize(words) > kMostWordsOfText) {
        throw RequestError(413, fmt::format("text {} has {} words, and {} are read at most; send it in parts",
                                            asked->words.size() + 1, words.size(), kMostWordsOfText));
      }
      asked->words.push_back(std::move(words));
    }
  }
  auto tokenized = tokenize_here(classifier, asked->rows());
  check_lengths(tokenized);
  const bool has_room =
      queue->submit({.runner = asked->model,
                     .texts = std::move(tokenized),
                     .deadline = deadline,
                     .done = [this, asked, respond](BatchQueue::Result result) {
                       respond([this, asked, result = std::move(result)] { return describe(*asked, result); });
                     }});
  if (!has_room) {
    throw RequestError(503, kFull);
  }
}

HttpResponse Server::State::describe(const Asked& asked, const BatchQueue::Result& result) {
  const Classifier& classifier = asked.model->classifier();
  if (result.error) throw_as_failure(result.error);
  try {
    classifier.check_finite(result.outputs);
  } catch (const c10::Error& wrong) {
    log(fmt::format("{}: {}", asked.model_name, wrong.what_without_backtrace()));
    throw RequestError(500, wrong.what_without_backtrace());
  }
  const auto lines = predictions_as_json(classifier.task(), asked.rows(), result.outputs, result.texts.word_ids,
                                         asked.request.options, asked.request.logits);
  metrics.count_texts(asked.model_name, std::ssize(lines), result.texts.count_tokens(), result.texts.truncated);
  if (!asked.request.is_many) return {.body = lines.front() + "\n"};
  return {.body = fmt::format("[{}]\n", fmt::join(lines, ",\n"))};
}

namespace {

/// True also for a model that may take pairs, as its config.json does not say.
bool takes_pairs(const Classifier& classifier) {
  const ModelConfig& config = classifier.model().config();
  return config.reads_pairs.value_or(true) && !classifier.reads_words() && config.window_pooling.empty();
}

}  // namespace

HttpResponse Server::State::describe_models() const {
  auto list = AnswerJson::array();
  for (const auto& model : models) {
    const auto entry = running(model);
    const Classifier& classifier = entry->classifier();
    list.push_back({{"name", model.about.name},
                    {"task", classifier.task().problem_type()},
                    {"labels", classifier.task().label_names()},
                    {"precision", classifier.precision_name()},
                    {"max_length", classifier.max_length()},
                    {"reads_pairs", takes_pairs(classifier)},
                    {"reads_words", classifier.reads_words()},
                    {"reads_windows", !classifier.model().config().window_pooling.empty()}});
  }
  return json_response({{"models", std::move(list)}});
}

void Server::State::reload(const HttpServer::Respond& respond) {
  if (is_reloading.exchange(true)) {
    throw RequestError(409, "the models are being loaded already");
  }
  try {
    if (reloading.joinable()) reloading.join();  // its work is done
    reloading = std::thread([this, respond] {
      HttpServer::MakeResponse make;
      try {
        make = [response = reload_all()] { return response; };
      } catch (...) {
        make = [error = std::current_exception()]() -> HttpResponse { std::rethrow_exception(error); };
      }
      is_reloading = false;
      respond(std::move(make));
    });
  } catch (...) {
    is_reloading = false;
    throw;
  }
}

HttpResponse Server::State::reload_all() {
  auto list = AnswerJson::array();
  bool are_all = true;
  for (auto& model : models) {
    const auto& [name, folder] = model.about;
    try {
      check_no_pipes(folder);
      auto loaded = load(folder);
      const std::lock_guard lock(mutex);
      model.running.swap(loaded);
      list.push_back({{"name", name}, {"reloaded", true}});
    } catch (const std::exception& error) {
      log(fmt::format("{}: not reloaded, the previous model is kept: {}", name, message_of(error)));
      list.push_back({{"name", name}, {"reloaded", false}});
      are_all = false;
    }
  }
  if (are_all) return json_response({{"models", std::move(list)}});
  auto response =
      json_response({{"error", "not all models could be loaded; the previous models are kept; see the server's log"},
                     {"models", std::move(list)}});
  response.status = 500;
  return response;
}

Server::Server(const std::vector<ServedModel>& models, const ServerOptions& options)
    : state_(new State{.options = options}) {
  State& state = *state_;
  state.options.classifier.is_mapped = false;  // a file may be changed under a server
  for (const auto& about : models) {
    TORCH_CHECK_VALUE(
        find_invalid_utf8(about.name) == about.name.size(), about.folder.string(),
        ": the model's name is not UTF-8, so no request could name it; pass another, as --model NAME=DIR");
    state.models.push_back({about, state.load(about.folder)});
  }
  state.queue.emplace(options.max_queue);
  state.http.emplace(
      HttpServer::Options{.host = options.host,
                          .port = options.port,
                          .max_body_bytes = static_cast<size_t>(options.max_body_bytes),
                          .patience = options.timeout,
                          .on_full =
                              [&state](unsigned connections) {
                                state.log(
                                    fmt::format("all {} connections are in use; new connections wait", connections));
                              }},
      [&state](const HttpRequest& request) {
        auto refusal = check_request(request, state.hosts, state.options.token);
        if (refusal) state.count(request.path, refusal->status, 0);
        return refusal;
      },
      [&state](const HttpRequest& request, const HttpServer::Respond& respond) { state.handle(request, respond); },
      [&state](const std::string& path, int status) {
        state.count(path, status, 0);
        switch (status) {
          case 413:
            return error_response(status,
                                  fmt::format("the body has more than {} bytes; send the texts in several requests",
                                              state.options.max_body_bytes));
          case 400:
            return error_response(status,
                                  "a header's name has a space, or there is more than one Host, Content-Length or "
                                  "Transfer-Encoding");
          case 501: return error_response(status, "only the Transfer-Encoding chunked is supported");
          case 503: return error_response(status, state.is_stopping ? "the server is stopping" : kNoMemory);
          default: return error_response(status, kFailedInside);
        }
      });
}

Server::~Server() { stop(); }

uint16_t Server::port() const { return state_->http->port(); }

unsigned Server::most_connections() const { return state_->http->most_connections(); }

void Server::stop() {
  constexpr std::chrono::seconds kPatience(5);
  std::call_once(state_->stop_once, [&] {
    state_->is_stopping = true;
    state_->http->stop(kPatience);
    if (state_->reloading.joinable()) state_->reloading.join();
  });
}

}  // namespace mezzo::text
