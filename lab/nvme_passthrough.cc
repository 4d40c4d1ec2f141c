// SPDX-License-Identifier: Apache-2.0
// Does NVMe passthrough (/dev/ngXnY, io_uring commands) read what a node has written through the block
// device, and write what the block device reads? All of the namespace is read both ways and compared byte for
// byte; its last 1 MiB is then written by passthrough and read back. Files named on the command line must lie
// in the namespace as they are, one piece each: what a node wrote of them.
//
//   nvme_passthrough /dev/ng0n1 /dev/nvme0n1 [FILE...]
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fs.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr std::uint64_t kPiece = 128u << 10;  // of a command: what every device takes
constexpr unsigned kDepth = 8;
constexpr std::uint64_t kWritten = 1u << 20;

[[noreturn]] void Die(const char* what, int error) {
  std::fprintf(stderr, "nvme_passthrough: %s: %s\n", what, std::strerror(error));
  std::exit(1);
}

// Commands of NVMe to a namespace, past the block layer.
class Passthrough {
 public:
  Passthrough(const char* path, unsigned block_bytes) : block_bytes_(block_bytes) {
    fd_ = ::open(path, O_RDWR | O_CLOEXEC);
    if (fd_ < 0) Die(path, errno);
    const int id = ::ioctl(fd_, NVME_IOCTL_ID);
    if (id <= 0) Die("NVME_IOCTL_ID", errno);
    namespace_ = static_cast<unsigned>(id);
    // Commands are 64 bytes longer than requests, and so is what comes back.
    const int ring = io_uring_queue_init(kDepth, &ring_, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
    if (ring != 0) Die("io_uring with requests of 128 bytes", -ring);
  }

  // All of it, from there on: opcode 2 reads, 1 writes.
  void Move(std::uint8_t opcode, char* bytes, std::uint64_t size, std::uint64_t at) {
    std::uint64_t asked = 0;
    for (std::uint64_t ended = 0, under_way = 0; ended < size;) {
      for (; under_way < kDepth && asked < size; ++under_way) {
        Ask(opcode, bytes + asked, std::min(kPiece, size - asked), at + asked);
        asked += std::min(kPiece, size - asked);
      }
      const int submitted = io_uring_submit(&ring_);
      if (submitted < 0) Die("io_uring_submit", -submitted);
      io_uring_cqe* end = nullptr;
      if (const int waited = io_uring_wait_cqe(&ring_, &end); waited < 0) Die("io_uring_wait_cqe", -waited);
      if (end->res < 0) Die("a command", -end->res);
      if (end->res > 0) {
        std::fprintf(stderr, "nvme_passthrough: the device says 0x%x\n", static_cast<unsigned>(end->res));
        std::exit(1);
      }
      ended += end->user_data;
      io_uring_cqe_seen(&ring_, end);
      --under_way;
    }
  }

 private:
  void Ask(std::uint8_t opcode, char* bytes, std::uint64_t size, std::uint64_t at) {
    io_uring_sqe* const request = io_uring_get_sqe(&ring_);
    if (request == nullptr) Die("io_uring_get_sqe", ENOBUFS);
    std::memset(request, 0, 2 * sizeof(*request));
    request->opcode = IORING_OP_URING_CMD;
    request->fd = fd_;
    request->user_data = size;
    request->cmd_op = NVME_URING_CMD_IO;
    nvme_uring_cmd command{};
    const std::uint64_t first = at / block_bytes_;
    command.opcode = opcode;
    command.nsid = namespace_;
    command.addr = reinterpret_cast<std::uintptr_t>(bytes);
    command.data_len = static_cast<std::uint32_t>(size);
    command.cdw10 = static_cast<std::uint32_t>(first);
    command.cdw11 = static_cast<std::uint32_t>(first >> 32);
    command.cdw12 = static_cast<std::uint32_t>(size / block_bytes_ - 1);
    std::memcpy(request->cmd, &command, sizeof(command));
  }

  const unsigned block_bytes_;
  int fd_ = -1;
  unsigned namespace_ = 0;
  io_uring ring_{};
};

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
std::unique_ptr<char, Free> Buffer(std::uint64_t bytes) {
  std::unique_ptr<char, Free> buffer(static_cast<char*>(std::aligned_alloc(4096, bytes)));
  if (buffer == nullptr) Die("memory for the namespace", ENOMEM);
  std::memset(buffer.get(), 0xa5, bytes);
  return buffer;
}

void ReadBlocks(int fd, char* into, std::uint64_t size, std::uint64_t at) {
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t bytes =
        ::pread(fd, into + done, std::min(kPiece, size - done), static_cast<off_t>(at + done));
    if (bytes <= 0) Die("the block device", errno);
    done += static_cast<std::uint64_t>(bytes);
  }
}

bool Same(const char* what, const char* a, const char* b, std::uint64_t bytes) {
  const bool same = std::memcmp(a, b, bytes) == 0;
  std::printf("%s: %llu bytes %s\n", what, static_cast<unsigned long long>(bytes),
              same ? "are the same" : "DIFFER");
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: nvme_passthrough /dev/ngXnY /dev/nvmeXnY [FILE...]\n");
    return 2;
  }
  const int blocks = ::open(argv[2], O_RDWR | O_DIRECT | O_CLOEXEC);
  if (blocks < 0) Die(argv[2], errno);
  int block_bytes = 0;
  std::uint64_t size = 0;
  if (::ioctl(blocks, BLKSSZGET, &block_bytes) != 0 || ::ioctl(blocks, BLKGETSIZE64, &size) != 0)
    Die(argv[2], errno);
  Passthrough device(argv[1], static_cast<unsigned>(block_bytes));
  const auto passed = Buffer(size), read = Buffer(size);
  device.Move(2, passed.get(), size, 0);
  ReadBlocks(blocks, read.get(), size, 0);
  bool good = Same("read by passthrough and as blocks", passed.get(), read.get(), size);
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string body{std::istreambuf_iterator<char>(file), {}};
    const void* const found = body.empty() ? nullptr : ::memmem(passed.get(), size, body.data(), body.size());
    good = good && found != nullptr;
    std::printf("%s: %zu bytes %s\n", argv[i], body.size(),
                found ? "lie there as they are" : "ARE NOT THERE");
  }
  for (std::uint64_t at = 0; at < kWritten; ++at)
    passed.get()[at] = static_cast<char>(at * 2654435761u >> 13);
  device.Move(1, passed.get(), kWritten, size - kWritten);
  ReadBlocks(blocks, read.get(), kWritten, size - kWritten);
  good = Same("written by passthrough, read as blocks", passed.get(), read.get(), kWritten) && good;
  return good ? 0 : 1;
}
