// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <string.h>
#include <unistd.h>

#include "base/format.h"

namespace cistern {

std::string ErrnoText(int error) {
  const char* text = ::strerrordesc_np(error);
  const char* name = ::strerrorname_np(error);
  if (text == nullptr || name == nullptr) return Text("error ", error);
  return Text(text, " (", name, ")");
}

void Fd::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace cistern
