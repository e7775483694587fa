#include <mezzo/text/tokenizers/tokenizer.h>
#include <mezzo/text/train/trainer.h>

#include <iostream>

int main(int argc, char** argv) {
  const auto tokenizer = mezzo::text::Tokenizer::from_vocab(argc > 1 ? argv[1] : "vocab.txt");
  std::cout << tokenizer->encode("a text").input_ids.size() << '\n';
  return mezzo::text::TrainConfig().batch_size == 32 ? 0 : 1;
}
