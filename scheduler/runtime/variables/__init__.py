"""The variables of a session: their values, who may assign, and files of them."""
