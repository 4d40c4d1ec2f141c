// SPDX-License-Identifier: Apache-2.0
// Do blocks lie on the memory node that they are to lie on? Puts blocks, or looks at those of an earlier run,
// asks the kernel on which node each page of a view lies, and compares all bytes.
//
//   numa_blocks SOCKET put|look|use NODES SET FIRST COUNT
//
// SET numbers the blocks' keys and bytes; each page of the COUNT blocks from FIRST on is to lie on one of
// NODES, "0" or "0,1"; "any" asks no page.
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "cistern/cistern.h"

namespace {

using cistern::BlockKey;

constexpr std::size_t kBytes = 1u << 20;

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "numa_blocks: %s\n", what.c_str());
  std::exit(1);
}

BlockKey KeyOf(std::uint64_t set, std::uint64_t number) {
  BlockKey key;
  key.length = 16;
  std::memcpy(key.bytes.data(), &set, sizeof(set));
  std::memcpy(key.bytes.data() + sizeof(set), &number, sizeof(number));
  return key;
}

std::vector<std::byte> BodyOf(std::uint64_t set, std::uint64_t number) {
  std::vector<std::uint64_t> words(kBytes / sizeof(std::uint64_t));
  std::uint64_t state = (set << 32 | number) + 1;
  for (std::uint64_t& word : words) word = state = state * 6364136223846793005u + 1442695040888963407u;
  std::vector<std::byte> body(kBytes);
  std::memcpy(body.data(), words.data(), kBytes);
  return body;
}

int NodeOf(const std::byte* page) {
  int node = -1;
  if (::syscall(SYS_get_mempolicy, &node, nullptr, 0, page, MPOL_F_NODE | MPOL_F_ADDR) != 0)
    Die("get_mempolicy");
  return node;
}

}  // namespace

int main(int count, char** words) {
  if (count != 7) Die("SOCKET put|look|use NODES SET FIRST COUNT");
  const bool put = std::strcmp(words[2], "put") == 0, use = std::strcmp(words[2], "use") == 0;
  const std::string nodes = words[3];
  const std::uint64_t set = std::strtoull(words[4], nullptr, 10);
  const std::uint64_t first = std::strtoull(words[5], nullptr, 10);
  const std::uint64_t blocks = std::strtoull(words[6], nullptr, 10);
  cistern::ConnectOptions options;
  options.socket = words[1];
  options.deadline_us = 120'000'000;
  auto store = cistern::Store::Connect(options);
  if (!store) Die(store.error().ToString());
  auto ns = store->Attach({.fields = {{"name", "numa"}}, .groups = {{.name = "all"}}});
  if (!ns) Die(ns.error().ToString());
  std::uint64_t pages = 0, elsewhere = 0;
  for (std::uint64_t n = first; n < first + blocks; ++n) {
    const BlockKey key = KeyOf(set, n);
    const std::vector<std::byte> body = BodyOf(set, n);
    if (put) {
      const cistern::Status status = store->Put(*ns, key, std::nullopt, body);
      if (!status.ok()) Die(status.ToString());
    }
    // A view alone counts as no use.
    if (use && !store->Touch(*ns, {&key, 1}).Wait()) Die("a block cannot be used");
    const cistern::BlockRef block{.key = key};
    auto lease = store->Acquire(*ns, {&block, 1}).Wait();
    if (!lease || lease->views().empty()) Die("a block is not there");
    const cistern::View& view = lease->views()[0];
    const std::span bytes(view.data, view.bytes);
    if (bytes.size() != body.size() || std::memcmp(bytes.data(), body.data(), body.size()) != 0)
      Die("wrong bytes");
    for (std::size_t at = 0; nodes != "any" && at < bytes.size(); at += 4096, ++pages)
      elsewhere += nodes.find(std::to_string(NodeOf(bytes.data() + at))) == std::string::npos;
    if (!lease->still_good()) Die("the lease lapsed");
  }
  std::printf("set %llu on %s: %llu blocks exact, %llu of %llu pages on another node\n",
              static_cast<unsigned long long>(set), words[3], static_cast<unsigned long long>(blocks),
              static_cast<unsigned long long>(elsewhere), static_cast<unsigned long long>(pages));
  return elsewhere == 0 ? 0 : 1;
}
