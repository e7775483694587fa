#include <mezzo/text/tokenizers/tokenizer.h>
#include <mezzo/text/train/trainer.h>
#include <regex.h>

#include <iostream>

/// Whether regcomp() is the C library's, although Oniguruma has one too.
static bool matches_posix_regex() {
  regex_t regex;
  return regcomp(&regex, "^(a|b)+x{2}$", REG_EXTENDED) == 0 && regexec(&regex, "ababxx", 0, nullptr, 0) == 0;
}

int main(int argc, char** argv) {
  const auto tokenizer = mezzo::text::Tokenizer::from_vocab(argc > 1 ? argv[1] : "vocab.txt");
  std::cout << tokenizer->encode("a text").input_ids.size() << '\n';
  return mezzo::text::TrainConfig().batch_size == 32 && matches_posix_regex() ? 0 : 1;
}
