// SPDX-License-Identifier: Apache-2.0
// A node in a process of its own, which a test can kill, stop and let go on.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include "../real_node.h"
#include "base/test_directory.h"
#include "memory/arena_file.h"

namespace cistern {

// A node, and a client with a lease of its block 1.
class NodeProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.memory_dir = directory_.path() + "/memory";
    options_.memory_bytes = 128u << 20;
    options_.socket = directory_.path() + "/socket";
    options_.log_level = "error";
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::atomic<bool> ended = false;
      options_.on_ends = [&](const Status& why) {
        ended = !why.ok();
        ended.notify_one();
      };
      Result<std::unique_ptr<node::Node>> node = node::Node::Start(options_);
      const char byte = node ? 'y' : 'n';
      if (write(ready[1], &byte, 1) != 1) _exit(1);
      ended.wait(false);
      (*node)->Stop(0);
      _exit(7);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    ASSERT_EQ(byte, 'y');
    close(ready[0]);
    close(ready[1]);
    ConnectOptions connect;
    connect.socket = options_.socket;
    connect.deadline_us = 60'000'000;
    store_.emplace(*Store::Connect(connect));
    ns_ = AttachTest(*store_);
    ASSERT_TRUE(PutBlock(*store_, ns_, 1, std::nullopt, kBlockBytes).ok());
    const BlockRef ref{KeyOf(1)};
    lease_ = *store_->Acquire(ns_, std::span(&ref, 1), {.lease_us = kMaxLeaseUs}).Wait();
    ASSERT_TRUE(lease_.still_good());
    arena_.memory_dir = options_.memory_dir;
    arena_.memory_bytes = options_.memory_bytes;
    arena_.lock_wait_us = 300'000'000;
  }
  void TearDown() override { Kill(); }
  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

  static constexpr std::size_t kBlockBytes = 96u << 10;  // a segment and a half

  SystemClock clock_;
  const TestDirectory directory_;
  node::NodeOptions options_;
  memory::ArenaOptions arena_;
  pid_t child_ = -1;
  std::optional<Store> store_;
  Namespace ns_;
  Lease lease_;
};

}  // namespace cistern
