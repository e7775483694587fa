#include "mezzo/text/tokenizers/tokenizer.h"

#include "mezzo/text/tokenizers/bert_tokenizer.h"

namespace mezzo::text {

// What reads the files refuses those of other kinds.

std::shared_ptr<const Tokenizer> Tokenizer::from_pretrained(const std::filesystem::path& folder) {
  return std::make_shared<BertTokenizer>(BertTokenizer::from_pretrained(folder));
}

std::shared_ptr<const Tokenizer> Tokenizer::from_vocab(const std::filesystem::path& vocab) {
  return std::make_shared<BertTokenizer>(BertTokenizer::from_vocab(vocab));
}

}  // namespace mezzo::text
