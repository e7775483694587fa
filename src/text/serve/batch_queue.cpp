#include "text/serve/batch_queue.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace mezzo::text {

/// Some texts of a request.
struct BatchQueue::Part {
  std::shared_ptr<Waiting> waiting;
  int64_t begin, count;
};

namespace {

/// Puts rows of a batch to their places in a request's outputs. With a row a token, [N, L, outputs], the batch's
/// longest text is another than the request's.
void put_rows(const at::Tensor& rows, int64_t begin, const TokenizedTexts& texts, at::Tensor& outputs) {
  const bool is_by_token = rows.dim() == 3;
  if (!outputs.defined()) {
    auto sizes = rows.sizes().vec();
    sizes[0] = std::ssize(texts.ids);
    if (is_by_token) {
      sizes[1] = 0;
      for (const auto& ids : texts.ids) sizes[1] = std::max<int64_t>(sizes[1], std::ssize(ids));
    }
    outputs = at::zeros(sizes, rows.options());
  }
  const auto place = outputs.narrow(0, begin, rows.size(0));
  if (!is_by_token) {
    place.copy_(rows);
    return;
  }
  const int64_t length = std::min(rows.size(1), place.size(1));
  place.narrow(1, 0, length).copy_(rows.narrow(1, 0, length));
}

}  // namespace

BatchQueue::BatchQueue(int64_t max_waiting) : max_waiting_(max_waiting), thread_([this] { work(); }) {}

BatchQueue::~BatchQueue() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_all();
  thread_.join();
}

bool BatchQueue::has_room(int64_t count) const {
  const std::lock_guard lock(mutex_);
  return counts_.waiting_texts == 0 || counts_.waiting_texts + count <= max_waiting_;
}

bool BatchQueue::submit(Request request) {
  const int64_t count = std::ssize(request.texts.ids);
  auto waiting = std::make_shared<Waiting>(Waiting{.request = std::move(request)});
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_ || (counts_.waiting_texts > 0 && counts_.waiting_texts + count > max_waiting_)) {
      return false;
    }
    waiting_.push_back(std::move(waiting));
    counts_.waiting_texts += count;
  }
  has_work_.notify_one();
  return true;
}

BatchQueue::Counts BatchQueue::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void BatchQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [&] { return is_stopping_ || !waiting_.empty(); });
    if (is_stopping_) break;
    if (drop_late()) {
      answer_those_over(lock);
      continue;
    }
    const auto batch = next_batch();
    lock.unlock();
    const auto begin = Clock::now();
    const TokenizedTexts texts = run(batch);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    lock.lock();
    ++counts_.batches;
    counts_.texts += std::ssize(texts.ids);
    counts_.tokens += texts.count_tokens();
    counts_.seconds += seconds;
    answer_those_over(lock);
  }
  for (const auto& one : waiting_) {
    one->error = std::make_exception_ptr(std::runtime_error("the server is stopping"));
    one->is_over = true;
  }
  answer_those_over(lock);
}

/// Only this thread touches the requests of a batch while it runs. Returns its texts.
TokenizedTexts BatchQueue::run(const std::vector<Part>& batch) {
  TokenizedTexts texts;
  std::exception_ptr error;
  try {
    for (const auto& [waiting, begin, count] : batch) {
      append(texts, subspan(waiting->request.texts, begin, count));
    }
    const at::Tensor outputs = batch.front().waiting->request.runner->run(texts);
    int64_t row = 0;
    for (const auto& [waiting, begin, count] : batch) {
      put_rows(outputs.narrow(0, row, count), begin, waiting->request.texts, waiting->outputs);
      row += count;
    }
  } catch (...) {
    error = std::current_exception();
  }
  for (const auto& [waiting, begin, count] : batch) {
    waiting->finished += count;
    waiting->error = error;
    waiting->is_over = error != nullptr || waiting->finished == std::ssize(waiting->request.texts.ids);
  }
  return texts;
}

/// Whether there were any.
bool BatchQueue::drop_late() {
  const auto now = Clock::now();
  bool has_late = false;
  for (const auto& one : waiting_) {
    if (one->request.deadline < now) {
      one->error = std::make_exception_ptr(DeadlineError("not done in time"));
      one->is_over = has_late = true;
    }
  }
  return has_late;
}

void BatchQueue::answer_those_over(std::unique_lock<std::mutex>& lock) {
  const auto is_over = [](const auto& one) { return one->is_over; };
  std::vector<std::shared_ptr<Waiting>> over;
  std::ranges::copy_if(waiting_, std::back_inserter(over), is_over);
  std::erase_if(waiting_, is_over);
  for (const auto& one : over) counts_.waiting_texts -= std::ssize(one->request.texts.ids);
  lock.unlock();
  for (const auto& one : over) {
    one->request.done({std::move(one->outputs), std::move(one->request.texts), std::move(one->error)});
  }
  over.clear();  // and with it, perhaps, the last request to a model that another has replaced
  lock.lock();
}

/// Texts of the model whose turn it is. Each of its requests gets its share of the batch first, in their order; then
/// they fill the rest, from the first on.
std::vector<BatchQueue::Part> BatchQueue::next_batch() {
  const auto runner = waiting_.front()->request.runner;
  std::vector<std::shared_ptr<Waiting>> requests;
  for (const auto& one : waiting_) {
    one->was_served = false;
    if (one->request.runner == runner) requests.push_back(one);
  }
  constexpr int64_t kMostShares = 8;
  const int64_t room = runner->tokens_of_batch();
  const int64_t share = room / std::min<int64_t>(kMostShares, std::ssize(requests));
  int64_t taken = 0;
  const auto take = [&](Waiting& one,
                        int64_t most) {  // as many of its texts as fit, of `most` tokens, but one at least
    const auto& ids = one.request.texts.ids;
    int64_t end = one.begun, tokens = 0;
    while (end < std::ssize(ids)) {
      const int64_t more = std::ssize(ids[end]);
      const bool is_too_much = tokens > 0 && tokens + more > most;
      const bool is_full = taken + tokens > 0 && taken + tokens + more > room;
      if (is_too_much || is_full) break;
      tokens += more;
      ++end;
    }
    taken += tokens;
    return std::exchange(one.begun, end);
  };
  std::vector<int64_t> begins;
  for (const auto& one : requests) begins.push_back(take(*one, share));
  for (const auto& one : requests) take(*one, room);
  std::vector<Part> batch;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t count = requests[i]->begun - begins[i];
    if (count == 0) continue;
    requests[i]->was_served = true;
    batch.push_back({requests[i], begins[i], count});
  }
  // Requests that were served go behind the others, so that every model and every request gets its turn.
  std::ranges::stable_partition(waiting_, [](const auto& one) { return !one->was_served; });
  return batch;
}

}  // namespace mezzo::text
