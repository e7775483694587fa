#include "text/serve/server_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "mezzo/version.h"
#include "text/machine/machine_memory.h"

namespace mezzo::text {
namespace {

/// The value of a label, as the format wants it.
std::string escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

/// The lines before a metric's values.
std::string head(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

void ServerMetrics::count_request(const std::string& path, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
  if (path == "/predict" && status == 200) {
    ++in_bucket_[std::ranges::lower_bound(kSeconds, seconds) - kSeconds.begin()];
    seconds_ += seconds;
  }
}

void ServerMetrics::count_texts(const std::string& model, int64_t texts, int64_t tokens, int64_t cut) {
  const std::lock_guard lock(mutex_);
  auto& of_model = models_[model];
  of_model.texts += texts;
  of_model.tokens += tokens;
  of_model.cut += cut;
}

std::string ServerMetrics::to_text(const BatchQueue::Counts& queue) const {
  std::string text;
  const auto out = std::back_inserter(text);
  const auto plain = [&](const char* name, const char* type, const char* help, double value) {
    fmt::format_to(out, "{}{} {}\n", head(name, type, help), name, value);
  };
  const std::lock_guard lock(mutex_);
  text += head("mezzo_requests_total", "counter", "Requests answered, by path and status.");
  for (const auto& [key, count] : requests_) {
    fmt::format_to(out, "mezzo_requests_total{{path=\"{}\",code=\"{}\"}} {}\n", escaped(key.first), key.second, count);
  }
  text += head("mezzo_request_seconds", "histogram",
               "Seconds that predictions took, from the whole request to the answer.");
  int64_t so_far = 0;
  for (size_t i = 0; i < kSeconds.size(); ++i) {
    so_far += in_bucket_[i];
    fmt::format_to(out, "mezzo_request_seconds_bucket{{le=\"{}\"}} {}\n", kSeconds[i], so_far);
  }
  so_far += in_bucket_.back();
  fmt::format_to(out,
                 "mezzo_request_seconds_bucket{{le=\"+Inf\"}} {0}\nmezzo_request_seconds_sum "
                 "{1}\nmezzo_request_seconds_count {0}\n",
                 so_far, seconds_);
  const auto of_models = [&](const char* name, const char* help, int64_t OfModel::* member) {
    text += head(name, "counter", help);
    for (const auto& [model, counts] : models_) {
      fmt::format_to(out, "{}{{model=\"{}\"}} {}\n", name, escaped(model), counts.*member);
    }
  };
  of_models("mezzo_texts_total", "Texts labelled.", &OfModel::texts);
  of_models("mezzo_tokens_total", "Tokens of predicted texts, after truncation.", &OfModel::tokens);
  of_models("mezzo_texts_cut_total", "Texts that were truncated.", &OfModel::cut);
  plain("mezzo_batches_total", "counter", "Batches that models have run.", static_cast<double>(queue.batches));
  plain("mezzo_batch_texts_total", "counter", "Texts in them.", static_cast<double>(queue.texts));
  plain("mezzo_batch_tokens_total", "counter", "Tokens in them.", static_cast<double>(queue.tokens));
  plain("mezzo_batch_seconds_total", "counter", "Seconds they took.", queue.seconds);
  plain("mezzo_queue_texts", "gauge", "Texts that wait or are being run.", static_cast<double>(queue.waiting_texts));
  plain("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.",
        static_cast<double>(resident_memory_bytes()));
  plain("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.",
        std::chrono::duration<double>(begin_.time_since_epoch()).count());
  fmt::format_to(out, "{}mezzo_build_info{{version=\"" MEZZO_VERSION "\"}} 1\n",
                 head("mezzo_build_info", "gauge", "The version of mezzo."));
  return text;
}

}  // namespace mezzo::text
