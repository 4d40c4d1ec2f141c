// SPDX-License-Identifier: Apache-2.0
// A node in this process, whose memory lies in the directory named: put a block and get it back.
#include <cistern/cistern.h>

#include <cstdio>
#include <optional>
#include <vector>

int Fail(const cistern::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

int main(int argc, char** argv) {
  cistern::OpenOptions options;
  options.memory_bytes = 64 << 20;
  if (argc > 1) options.memory_dir = argv[1];
  auto store = cistern::Store::Open(options);
  if (!store) return Fail(store.error());

  cistern::NamespaceSpec spec;
  spec.fields = {{"model", "an-example"}, {"dtype", "bf16"}};
  spec.groups = {{.name = "attention"}};
  auto ns = store->Attach(spec);
  if (!ns) return Fail(ns.error());

  auto key = cistern::BlockKey::FromHex("000102030405060708090a0b0c0d0e0f");
  std::vector<std::byte> kv(64 << 10, std::byte{42});
  if (auto put = store->Put(*ns, *key, std::nullopt, kv); !put.ok()) return Fail(put);

  auto got = store->Get(*ns, *key);
  if (!got) return Fail(got.error());
  std::printf("%zu bytes, %s\n", got->size(), *got == kv ? "as they were put" : "others than were put");
  return *got == kv ? 0 : 1;
}
