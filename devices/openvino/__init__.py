"""The device ``openvino``: whole subgraphs in OpenVINO's own runtime."""
