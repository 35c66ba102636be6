# The one list of compiler options for our own code.
add_library(neuron_warnings INTERFACE)
target_compile_options(neuron_warnings INTERFACE
  -Wall -Wextra -Wundef -Wnon-virtual-dtor -Wno-unused-parameter
  -Werror=switch -Werror=return-type)
